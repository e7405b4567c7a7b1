"""signSGD with majority vote: rule and votes by hand, and what one client can move."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.solvers.signsgd import SignSGDSolver
from client_app.training.loop import Examples, LocalTask
from client_app.training.stacked import Perceptron
from strategies.engine.state import ServerState
from strategies.rules.signsgd import server_update
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import Config
from task.config.sections import TrainConfig
from task.errors import FieldError
from task.models import build_model
from task.numerics.arrays import Arrays, state_of
from task.numerics.reduce import Sum
from task.numerics.seeds import BATCHES, rng_for
from task.wire import messages as wire
from task.wire.coding import check_votes
from tests.support.federation import SIZES, owners_config, play, write_owners
from tests.support.liar import liar
from tests.support.models import OneNumber, task_on
from tests.support.rules import reduced, w


def test_the_step_goes_along_the_majority_and_a_tie_stays() -> None:
    # votes 3:1, 1:3 and 2:2, whatever the example counts; w - 0.25 sign
    votes = {"a": (w(1, -1, 1), 90), "b": (w(1, -1, -1), 1), "c": (w(1, 1, 1), 1), "d": (w(-1, -1, -1), 1)}
    state = ServerState(w(1, 1, 1) | {"seen": np.array(4, np.int64)})
    new, metrics = server_update(state, reduced("signsgd", votes, lr=0.25), Config())
    assert new.arrays["w"].tolist() == [0.75, 1.25, 1.0]
    assert new.arrays["w"].dtype == np.float32
    assert (int(new.arrays["seen"]), metrics) == (4, {})
    assert state.arrays["w"].tolist() == [1.0, 1.0, 1.0]  # pure


def vote(x: list[float], *, client: str = "a", server_round: int = 1, **keys: int) -> tuple[float, float]:
    """Return the vote and the loss of a client at w = 0, where the gradient is -mean(x) / 2."""
    task = task_on(OneNumber(), torch.tensor(x), torch.ones(len(x)).long(), client=client, **keys)
    order = wire.TrainOrder(server_round, {}, {}, (client,), (1,))
    ((upload, kept),) = SignSGDSolver(Config(), {}, {}, [{}], (), order).finish(task, [])
    assert not kept
    assert upload.arrays.keys() == {"sign"}
    return float(upload.arrays["sign"]["w"][0]), upload.scalars["train-loss"]


def test_a_vote_by_hand() -> None:
    assert vote([3.0, -1.0], batch_size=0) == (-1.0, pytest.approx(np.log(2)))
    assert vote([-3.0, 1.0], batch_size=0) == (1.0, pytest.approx(np.log(2)))


def test_it_is_that_of_the_first_minibatch() -> None:
    x = [1.0, -1.0, 1.0, -1.0, 1.0]
    row = int(rng_for(1, BATCHES, 1, "a").permutation(5)[0])
    assert vote(x, batch_size=1)[0] == -np.sign(x[row])


def test_where_there_is_no_gradient_a_coin_is_tossed() -> None:
    """Each client's own, in each round: 0 counted as 1 would move dead weights on and on."""
    votes = [vote([0.0], client=f"c{i}", server_round=t)[0] for i in range(20) for t in range(20)]
    assert set(votes) == {-1.0, 1.0}
    assert abs(sum(votes)) < 5 * np.sqrt(len(votes))
    assert vote([0.0]) == vote([0.0])


def test_a_cohort_votes_as_its_clients_alone() -> None:
    model = build_model("mlp", (1, 8, 8), 4, seed=2)
    rng = np.random.default_rng(3)
    sizes, names = [9, 6, 2], "abc"
    x, y = torch.from_numpy(rng.normal(size=(17, 1, 8, 8)).astype(np.float32)), torch.arange(17) % 4
    x[:, :, :2] = 0  # pixels that nobody uses

    def votes(first: int, last: int) -> list[dict[str, np.ndarray]]:
        begin = sum(sizes[:first])
        rows = slice(begin, begin + sum(sizes[first:last]))
        rngs = [rng_for(1, BATCHES, 1, c) for c in names[first:last]]
        examples = Examples(x[rows], y[rows], sizes[first:last])
        config = TrainConfig(batch_size=4)
        task = LocalTask(
            Perceptron(model), state_of(model), examples, [1] * (last - first), 0.1, config, rngs
        )
        order = wire.TrainOrder(1, {}, {}, tuple(names[first:last]), (1,) * (last - first))
        made = SignSGDSolver(Config(), {}, {}, [{}] * task.clients, (), order).finish(task, [])
        return [upload.arrays["sign"] for upload, _ in made]

    together = votes(0, 3)
    for k in range(3):
        (alone,) = votes(k, k + 1)
        assert all(np.array_equal(together[k][n], a) for n, a in alone.items())
        assert all(set(np.unique(a)) <= {-1.0, 1.0} for a in alone.values())


@pytest.mark.parametrize("factor", [3, 1.5, 0, 1])
def test_a_node_that_merges_votes_has_as_many_as_it_has_clients(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums of a node of several clients, which sends no single votes here, are multiplied."""

    def swell(arrays: Arrays) -> Arrays:
        return {n: (a * factor).astype(a.dtype) for n, a in arrays.items()}

    monkeypatch.setattr("task.wire.coding.MOST_DECODED", 1)
    write_owners(tmp_path / "owners.npz")
    run = owners_config(tmp_path / "owners.npz", algorithm="signsgd", num_server_rounds=1, fraction_train=1.0)
    played = play(run, nodes=2, tamper=liar(arrays=swell))
    (row,) = played.rows[1:]
    lines = row["quarantined"]
    if factor == 1:
        assert not lines
        return
    clients = len(lines)
    assert clients > 1
    assert row["answered"] == len(SIZES) - clients
    assert all(line["field"].startswith("sign/") for line in lines)
    assert all(f"sums of {clients} votes" in line["expected"] for line in lines)


@pytest.mark.parametrize(
    ("voters", "sums", "good"),
    [
        (3, [3.0, 1.0, -1.0, -3.0], True),
        (3, [5.0], False),
        (3, [-5.0], False),
        (3, [2.0], False),  # of three votes
        (4, [0.0, -4.0, 2.0], True),
        (4, [0.5], False),
    ],
)
def test_sums_of_votes_by_hand(voters: int, sums: list[float], good: bool) -> None:
    like = {"w": np.array(sums)}
    total = Sum(like)
    total.add(like, 1, "a")
    sent = total.partial()
    with nullcontext() if good else pytest.raises(FieldError, match=f"sums of {voters} votes") as caught:
        check_votes(ALGORITHMS["signsgd"].up[0], sent["high"], sent["low"], voters)
    if not good:
        assert caught.value.field == "sign/w"
