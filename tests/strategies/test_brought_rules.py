"""A user's own rule by reference: what it does on server and clients, and what is refused before round 1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from client_app.solvers import solver_of
from strategies import strategy_of
from strategies.engine.state import AggregatedReplies, ServerState
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import Config
from task.config.read import as_run_config
from task.errors import ConfigError
from task.references import references_in
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from tests.support.brought import imported_from
from tests.support.federation import Played, play, read_by
from tests.support.liar import Tamper

RULES = '''
from dataclasses import replace

import numpy as np

from client_app.solvers.sgd import Solver, proximal
from strategies.engine.rule import Rule
from task.catalogue.algorithms import ALGORITHMS as OURS
from task.catalogue.record import Scalar


def middle(state, replies, config):
    """The mean of each number without the smallest and the largest."""
    stacks = replies.arrays["arrays"]
    cut = {n: np.sort(a, axis=0)[1:-1].mean(axis=0).astype(a.dtype) for n, a in stacks.items()}
    return replace(state, arrays=cut), {}


def mean(state, replies, config):
    return replace(state, arrays=replies.arrays["arrays"]), {}


def wide(state, replies, config):
    return replace(state, arrays={n: a.astype("f8") for n, a in replies.arrays["arrays"].items()}), {}


def asks(state, replies, config):
    return replies.arrays["gradient"]


def in_place(state, replies, config):
    for name, array in replies.arrays["arrays"].items():
        state.arrays[name][...] = array
    return state, {}


def model_alone(state, replies, config):
    return replies.arrays["arrays"], {}


def measured(metric):
    def update(state, replies, config):
        found = replies.arrays["arrays"]
        return replace(state, arrays=found), {"spread": metric(found["w"])}
    return update


class InPlace(Rule, update=in_place): ...
class NoMetrics(Rule, update=lambda *given: mean(*given)[0]): ...
class ModelAlone(Rule, update=model_alone): ...
class Spread(Rule, update=measured(np.std)): ...
class ArrayMetric(Rule, update=measured(lambda w: w)): ...


class Middle(Rule, update=middle):
    entry = OURS["median"]


class Mean(Rule, update=mean):
    """As FedAvg."""


class Exact(Rule, update=mean, takes_mean=True):
    """Says that it takes the mean and does nothing more."""


class Overridden(Exact, update=mean): ...


def twice(state, replies, config):
    return replace(state, arrays={n: 2 * a for n, a in replies.arrays["arrays"].items()}), {}


class Twice(Rule, update=twice, takes_mean=True): ...


class RoundToo(Exact, update=mean, takes_mean=True):
    def round(self, state, context):
        return (yield from super().round(state, context))


class Pulled(Rule, update=mean):
    entry = replace(OURS["fedavg"], title="Pulled", solver="own_rules:PulledSolver")


class PulledSolver(Solver):
    def terms(self, task):
        return proximal(task, 0.5)


def of(**changes):
    return type("Made", (Rule,), {"entry": replace(OURS["fedavg"], **changes)}, update=mean)


class Faulty(Rule, update=mean):
    entry = replace(OURS["fedavg"], title="Faulty", solver="own_rules:FaultySolver")


class FaultySolver(Solver):
    def terms(self, task):
        if "client-2" in self.order.clients:
            raise KeyError("mu")
        return []

    def finish(self, task, stats):
        finished = super().finish(task, stats)
        for client, (update, _) in zip(self.order.clients, finished, strict=True):
            if client == "client-1":
                update.arrays["more"] = update.arrays["arrays"]
        return finished


class NoUpdate(Rule):
    pass


class Text(Rule, update=mean):
    entry = "fedavg"


class Calibrated(Rule, update=mean):
    entry = OURS["fedlc"]


class OwnLoss(Rule, update=mean):
    entry = replace(OURS["fedlc"], solver="own_rules:PulledSolver")


class Controlled(Rule, update=mean):
    entry = OURS["scaffold"]


class Wide(Rule, update=wide): ...
class Asks(Rule, update=asks): ...


WrongRecord = of(up=OURS["scaffold"].up)
NoRecords = of(up=("arrays",))
NoDown = of(solver="fedprox")
NoSolver = of(solver="fedproxx")
Elsewhere = of(solver="other:Solver")
NotASolver = of(solver="own_rules:Middle")
Taken = of(phases={"train": OURS["fedavg"]})
Spaced = of(phases={"my phase": OURS["fedavg"]})
Untyped = of(phases={"mine": "loss"})
Columns = of(phases={"mine": replace(OURS["fedavg"], work="columns")})
Sends = of(phases={"mine": replace(OURS["fedavg"], work="loss")})
PhaseSolver = of(phases={"mine": replace(OURS["fedavg"], solver="fedproxx")})


class LineSearch(Rule):
    """FedAvg that takes the best of three steps by the training loss of a second phase."""

    entry = replace(OURS["fedavg"], phases={"losses": replace(
        OURS["fedavg"], up=(), up_scalars=(Scalar("loss", "F_k"),), work="loss"
    )})

    def round(self, state, context):
        replies = yield context.phase("train", state)
        mean, tried = replies.arrays["arrays"], []
        for step in (0.5, 1.0, 2.0):
            moved = {n: w + np.asarray(step * (mean[n] - w), w.dtype) for n, w in state.arrays.items()}
            answers = yield context.phase("losses", replace(state, arrays=moved), replies.clients)
            tried.append((answers.number("loss"), step, moved))
        loss, step, best = min(tried, key=lambda one: one[:2])
        return replace(state, arrays=best), {"step": step}


class TwoPhases(Rule, update=mean):
    """FedAvg after a training of the user's own, whose mean gradient it throws away."""

    entry = replace(OURS["fedavg"], phases={"warm": replace(OURS["fedavg"], solver="own_rules:PulledSolver")})

    def round(self, state, context):
        yield context.phase("warm", state)
        return (yield from super().round(state, context))


class Lost(LineSearch):
    def round(self, state, context):
        yield context.phase("lost", state)


class Fails(LineSearch):
    def round(self, state, context):
        replies = yield context.phase("train", state)
        return replace(state, arrays=replies.arrays["gradient"]), {}


class WideRound(LineSearch):
    def round(self, state, context):
        yield context.phase("train", state)
        return replace(state, arrays={n: a.astype("f8") for n, a in state.arrays.items()}), {}
'''


@pytest.fixture(autouse=True)
def rules(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "own_rules.py").write_text(RULES)
    with imported_from(tmp_path):
        yield tmp_path


def _config(name: str, **keys: str | float) -> Config:
    return read_config({"algorithm": f"own_rules:{name}", "dataset": "digits", **keys})


def test_a_rule_gets_what_its_entry_says_and_bears_its_own_name() -> None:
    """Of 0, 1, 5 and 100 without the ends the mean is 3; the entry's reduction is the median's, collect."""
    config = _config("Middle")
    entry = contract_of(config)
    assert (entry.name, entry.title, entry.up[0].reduce) == ("own_rules:Middle", "Middle", "collect")
    assert references_in(as_run_config(config)) == ("own_rules:Middle",)  # so its code is hashed and allowed
    stack = np.array([[0.0], [100.0], [1.0], [5.0]], np.float32)
    replies = AggregatedReplies({"arrays": {"w": stack}}, tuple("abcd"), np.ones(4, np.int64))
    made = strategy_of(entry.rule)(config)
    state, _ = made.rule.update(ServerState({"w": np.zeros(1, np.float32)}), replies, config)
    assert state.arrays["w"].tolist() == [3.0]


@pytest.mark.parametrize("keys", [{"he": True}, {"lora.average": "product"}])
def test_a_rule_that_says_that_it_takes_the_mean_goes_with_what_needs_that(
    keys: dict[str, str | float],
) -> None:
    """A class derived from it says so again, as it has an update of its own."""
    _config("Exact", **keys)
    for name in ("Mean", "Overridden"):
        with pytest.raises(ConfigError, match=rf'"own_rules:{name}": your rule may .*, takes_mean=True\)'):
            _config(name, **keys)


def test_a_rule_that_says_that_it_takes_the_mean_is_checked() -> None:
    """Its result is the mean as it came, in any form: with `he` it is a ciphertext, unlike the model."""
    mean = {"ciphertext": np.arange(5, dtype=np.uint8)}
    replies = AggregatedReplies({"arrays": mean}, tuple("ab"), np.ones(2, np.int64))
    before = ServerState({"w": np.zeros(1, np.float32)})

    def updated(name: str) -> ServerState:
        config = _config(name)
        return strategy_of(contract_of(config).rule)(config).rule.update(before, replies, config)[0]

    assert updated("Exact").arrays["ciphertext"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"as it is, since Twice says .*other numbers in 'ciphertext'"):
        updated("Twice")
    with pytest.raises(ConfigError, match="expected an update and no round, as RoundToo says"):
        updated("RoundToo")
    with pytest.raises(ConfigError, match="expected its update to return the model's arrays, w float32"):
        updated("Mean")


def test_what_our_solvers_need_is_asked_of_rules_that_name_them() -> None:
    keys = {"dp.noise": 1.0, "dp.unit": "example", "dp.delta": 0.01, "scaffold.option": "I"}
    with pytest.raises(ConfigError, match="a full gradient would go up without noise"):
        _config("Controlled", **keys)
    with pytest.raises(ConfigError, match="FedLC calibrates the logits of classes"):
        _config("Calibrated", task="regression")
    _config("OwnLoss", task="regression")  # of a user's own solver nothing is known


def _models(tmp_path: Path, name: str, algorithm: str, **keys: str | float) -> dict[str, np.ndarray]:
    path = tmp_path / name
    path.mkdir()
    given = {"dataset": "digits", "num-clients": 4, "max-examples": 90, "num-server-rounds": 2} | keys
    return play(read_by(given | {"algorithm": algorithm, "state-dir": str(path / "state")})).arrays(2)


def _same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_the_same_arithmetic_as_ours_ends_in_the_same_bytes(tmp_path: Path) -> None:
    """Catches a client half that is not the one that the entry names, or is not there at all."""
    assert _same(_models(tmp_path, "a", "own_rules:Mean"), _models(tmp_path, "b", "fedavg"))
    prox = _models(tmp_path, "d", "fedprox", **{"fedprox.mu": 0.5})
    assert _same(pulled := _models(tmp_path, "c", "own_rules:Pulled"), prox)
    assert not _same(pulled, _models(tmp_path, "e", "fedavg"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("middle", "a class derived from bouquet.extend.Rule; got function"),
        ("Text", "expected entry as a bouquet.extend.Algorithm; got str"),
        ("WrongRecord", r'entry.up: solver "sgd" sends arrays \(shared\); got control-delta'),
        ("NoRecords", "entry.up as a tuple of Record; got 'arrays'"),
        ("NoDown", r'entry.down_scalars: solver "fedprox" reads proximal-mu.*ALGORITHMS\[.fedprox'),
        ("NoSolver", 'Did you mean "fedprox"'),
        ("Elsewhere", 'expected a solver in "own_rules".*got "other:Solver"'),
        ("Taken", "entry.phases.*other than adapt.*got 'train'"),
        ("Spaced", "entry.phases.*names like Python's.*got 'my phase'"),
        ("Untyped", r'entry.phases\["mine"\] as a bouquet.extend.Algorithm; got str'),
        ("Columns", r'entry.phases\["mine"\].work as "train" or "loss"; got "columns"'),
        ("Sends", r'entry.phases\["mine"\].*up=\(\), keeps=\(\).*loss, loss-rms; got others'),
        ("PhaseSolver", r'entry.phases\["mine"\].solver.*Did you mean "fedprox"'),
        ("Middl", 'Did you mean "Middle"'),
    ],
)
def test_what_cannot_run_is_refused_when_the_config_is_read(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f'(?s)"algorithm".*{words}'):
        _config(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoUpdate", r"NoUpdate\(Rule, update=server_update\); got no update"),
        ("PulledSolver", "bouquet.extend.Rule"),
    ],
)
def test_what_is_no_rule_is_refused_by_the_server(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        strategy_of(f"own_rules:{name}")


def test_what_is_no_solver_is_refused_by_the_client_half() -> None:
    with pytest.raises(ConfigError, match=r'its solver "own_rules:Middle": expected a class derived from'):
        solver_of(contract_of(_config("NotASolver")).solver)


def _play(tmp_path: Path, name: str, nodes: int, tamper: Tamper | None = None, **keys: str | float) -> Played:
    given = {"algorithm": f"own_rules:{name}", "dataset": "digits", "num-clients": 4, "max-examples": 90}
    return play(given | {"num-server-rounds": 2, "learning-rate": 0.02} | keys, nodes=nodes, tamper=tamper)


def test_a_round_of_phases_of_its_own_takes_the_best_step_on_any_nodes(tmp_path: Path) -> None:
    """So small a learning rate leaves room: each round takes the step 2, and asks three times for losses."""
    one, three = (_play(tmp_path, "LineSearch", nodes) for nodes in (1, 3))
    assert [row["metrics"] for row in one.rows[1:]] == [{"step": 2.0}] * 2
    assert [row["model_sha256"] for row in one.rows] == [row["model_sha256"] for row in three.rows]
    assert not _same(one.arrays(1), _play(tmp_path, "Mean", 1).arrays(1))
    kinds = [message.metadata.message_type for message in one.grid.sent]
    assert [kinds.count(kind) for kind in ("train", "evaluate.losses")] == [2, 6]


def test_a_phase_that_is_lost_after_the_training_keeps_the_model(tmp_path: Path) -> None:
    def tamper(node: int, reply: Message) -> Message | None:
        return None if reply.metadata.message_type == "evaluate.losses" else reply

    keys = {"num-server-rounds": 1, "round-timeout": 0.5}
    (start, row) = _play(tmp_path, "LineSearch", 2, tamper, **keys).rows
    assert row["skipped"]
    assert row["model_sha256"] == start["model_sha256"]


def test_a_training_phase_of_its_own_runs_its_own_solver(tmp_path: Path) -> None:
    played = _play(tmp_path, "TwoPhases", 2)
    kinds = [message.metadata.message_type for message in played.grid.sent]
    assert [kinds.count(kind) for kind in ("train.warm", "train")] == [4, 4]
    assert _same(played.arrays(2), _play(tmp_path, "Mean", 2).arrays(2))


@pytest.mark.parametrize("nodes", [1, 4])
def test_what_a_solver_does_wrong_at_one_client_is_the_same_on_any_nodes(nodes: int, tmp_path: Path) -> None:
    """Of several clients on a node, a record that the entry does not have was dropped; of one, refused."""
    played = _play(tmp_path, "Faulty", nodes)
    found = {q["client"]: (q["field"], q["expected"], q["got"]) for q in played.rows[1]["quarantined"]}
    assert found.keys() == {"client-1", "client-2"}
    assert found["client-1"] == ("more", "the records ['arrays']", "['arrays', 'more']")
    assert re.fullmatch(r"code: KeyError: 'mu' \(own_rules.py, line \d+\)", found["client-2"][2])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Lost", "a phase of its entry: got .lost.*losses"),
        ("Fails", r"its round failed: KeyError: 'gradient' \(own_rules.py, line"),
        ("WideRound", r"expected its round to return the model's arrays.* float64"),
    ],
)
def test_a_round_that_fails_says_where(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        _play(tmp_path, name, 1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Wide", r"w float32\[1\]; got w float64\[1\]"),
        ("Asks", r"KeyError: 'gradient' \(own_rules.py, line"),
        ("InPlace", r"update failed: ValueError: assignment destination is read-only \(own_rules.py, line"),
        ("NoMetrics", r"its update to return \(state, metrics\); got ServerState"),
        ("ModelAlone", r"return \(replace\(state, arrays=...\), metrics\), .*; got \(dict, dict\)"),
        ("ArrayMetric", "numbers as metrics; got ndarray as 'spread'"),
    ],
)
def test_an_update_that_fails_or_changes_the_model_s_form_says_where(name: str, words: str) -> None:
    """Catches a model of float64 that goes to the clients, and a bare KeyError in a round."""
    config = _config(name)
    made = strategy_of(f"own_rules:{name}")(config)
    start = {"w": np.zeros(1, np.float32)}
    replies = AggregatedReplies({"arrays": start}, ("a",), np.ones(1, np.int64))
    with pytest.raises(ConfigError, match=words):
        made.rule.update(ServerState(start), replies, config)


def test_metrics_are_python_s_numbers() -> None:
    """NumPy's standard deviation of float32 is a float32, which Flower's records refuse."""
    start = {"w": np.zeros(1, np.float32)}
    replies = AggregatedReplies({"arrays": start}, ("a",), np.ones(1, np.int64))
    made = strategy_of("own_rules:Spread")(_config("Spread"))
    _, metrics = made.rule.update(ServerState(start), replies, _config("Spread"))
    assert metrics == {"spread": 0.0}
    assert type(metrics["spread"]) is float


def test_a_rule_may_read_any_algorithm_s_knobs_but_no_other_key_unread() -> None:
    assert _config("Middle", **{"fedprox.mu": 0.5}).fedprox.mu == 0.5
    with pytest.raises(ConfigError, match='"data-path": nothing in this run reads it'):
        _config("Middle", **{"data-path": "x.npz"})
    assert ALGORITHMS.keys().isdisjoint({"own_rules:Middle"})  # the catalogue stays as it is
