"""Recompute the rounds from the published sums: the rule's own code, with a transcript instead of nodes."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from flwr.serverapp import Grid
from safetensors import SafetensorError
from safetensors.numpy import load_file

from server_app.extras.verify.chain import Chain, Row
from server_app.extras.verify.findings import Findings
from server_app.extras.verify.replay_engine import DiffersError, ReplayEngine
from server_app.run.logs.transcript import INITIAL
from strategies import strategy_of
from strategies.engine.cohort import plan_round
from strategies.engine.rule import Phase, RoundContext
from strategies.engine.rule_round import RuleRound
from strategies.engine.state import ServerState
from strategies.stages.columns import ColumnsStage
from strategies.stages.transcript import state_digest
from task.catalogue.columns import COLUMNS, SQUARES, SUMS
from task.config.knobs import Config
from task.config.read import read_checked
from task.errors import DataError
from task.numerics.arrays import Arrays, sha256
from task.numerics.moments import moments_of
from task.references import check_origin
from task.resolve.contract import contract_of
from task.resolve.schedule import learning_rate

NOBODY = cast(Grid, None)  # no message is sent
MODELS = "models that equal the rule's result on the published sums"


def replay(chain: Chain, findings: Findings) -> Arrays | None:
    """Recompute all rounds; return the last model, None if a contradiction ends it before.

    Raises:
        DataError: A file is missing or damaged.
        ConfigError: The run's keys or code cannot be read here, or the user has not named that code.
    """
    check_origin(chain.about["run"], chain.folder)
    config = read_checked({**chain.about["run"], "resume": False})
    strategy = strategy_of(contract_of(config).rule)(config)
    rule, entry, engine = strategy.rule, strategy.entry, ReplayEngine(chain, config, findings)
    first = chain.lines[0]
    model = initial(chain)
    engine.trainable = tuple(first["trainable"])
    state: ServerState = rule.initial_state(model, engine.trainable)
    wanted = {int(line["back"]) for line in chain.lines if line["back"] is not None}
    kept: dict[int, ServerState] = {}
    number, rounds = 0, int(first["about"]["run"]["num-server-rounds"])
    try:
        _check_result(first, state, findings)
        _check_columns(engine, first, entry.phases.get(COLUMNS), chain.about.get(COLUMNS), findings)
        for line in chain.lines[1:]:
            if number in wanted:
                kept[number] = state
            number, cohort = int(line["round"]), tuple(line.get("cohort", ()))
            if "about" in line:
                rounds = int(line["about"]["run"]["num-server-rounds"])
            _check_rate(learning_rate(config.train, number, rounds), line)
            engine.begin_line(line, state.arrays)
            context = RoundContext(
                rule, entry, number, float(line["lr"]), cohort, engine.registry.names,
                engine.trainable, partial(_examples, line), epochs=_epochs(config, number, cohort),
                groups=tuple(tuple(group) for group in line.get("groups", ())),
                known=engine.registry.known.names,
            )  # fmt: skip
            state = rule.counted(state, context)
            state = _round(RuleRound(rule, state, context, engine, NOBODY), line, state, kept, engine)
            _check_result(line, state, findings)
    except DiffersError as err:
        findings.fault(number, str(err))
        findings.note(f"rounds after round {number} were not computed, because it does not match")
        return None
    return state.arrays


def _round(
    done: RuleRound, line: Row, state: ServerState, kept: dict[int, ServerState], engine: ReplayEngine
) -> ServerState:
    """Return the state after a round."""
    phase = done.begin()
    done.finish(engine.run(phase, done.grid) if phase else None)
    if rest := engine.rest():
        raise DiffersError(f"expected no further phase of the rule; got {', '.join(rest)}")
    outcome, asked = line["outcome"], int(line.get("spent", {}).get("asked", 0))
    if outcome == "rolled-back":
        if (back := kept.get(int(line["back"]))) is None:
            raise DiffersError(f"expected to go back to an earlier round; got {line['back']}")
        engine.findings.note(
            f"round {line['round']} went back to round {line['back']}: that most clients diverged "
            "is known from the server alone"
        )
        return done.skipped(done.rule.roll_back(back, state), asked, None)
    if (outcome == "updated") != (done.result is not None):
        why = f" ({done.why})" if done.why else ""
        raise DiffersError(
            f"expected a round that is {'skipped' if done.why else 'updated'}{why}; got {outcome}"
        )
    if done.result is not None:
        return done.result[0]
    engine.findings.note(f"round {line['round']} was skipped: {line['why'] or 'no client was asked'}")
    return done.skipped(state, asked, done.trained())


def _check_rate(want: float, line: Row) -> None:
    if float(line["lr"]) != want:
        raise DiffersError(f"expected the learning rate {want:g}, as the keys say; got {line['lr']:g}")


def _epochs(config: Config, server_round: int, cohort: Sequence[str]) -> Mapping[str, int]:
    """Return the epochs of a cohort's stragglers; those that are left out were never in it."""
    return {} if config.server.drop_stragglers else plan_round(config, server_round, cohort).epochs


def _examples(line: Row, clients: Iterable[str]) -> dict[str, Any]:
    """Return n_k by client as far as a rule's result depends on it: their mean is among what was sent."""
    sent = (phase.get("sent", {}).get("mean-examples") for phase in line["phases"])
    mean = next((n for n in sent if n is not None), None)
    return dict.fromkeys(clients, 1.0) if mean is None else {"": mean}


def _check_result(line: Row, state: ServerState, findings: Findings) -> None:
    """Check the model, and the rule's state, after a round."""
    for what, want, got in (
        ("model", sha256(state.arrays), line["model"]),
        ("rule's state", state_digest(state), line["state"] if "cohort" in line else state_digest(state)),
    ):
        if want != got:
            raise DiffersError(f"expected the {what} {want[:12]}, the rule's result; got {got[:12]}")
    findings.checked(MODELS)


def initial(chain: Chain) -> Arrays:
    """Return the initial model, as far as it travels.

    Raises:
        DataError: Its file is damaged.
    """
    path = chain.folder / INITIAL
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as err:
        raise DataError(f"{path}: expected the initial model; got {err}") from None


def _check_columns(
    engine: ReplayEngine, line: Row, contract: Any, said: Row | None, findings: Findings
) -> None:
    """Check the means of columns that clients were sent, by the sums of round 0."""
    if contract is None or said is None:
        return
    if not line["phases"]:
        findings.note("the means of columns are not in the transcript: the run was restarted before round 1")
        return
    engine.begin_line({**line, "cohort": line["phases"][0]["asked"]}, engine.model)
    if columns := engine.find(ColumnsStage):
        columns.count = len(said["mean"])
    folded = engine.run(Phase(COLUMNS, contract, tuple(line["phases"][0]["asked"])), NOBODY)
    arrays = folded.reduced.arrays if folded.reduced else {}
    made = moments_of(arrays[SUMS.name], arrays.get(SQUARES.name)).as_dict() if arrays else {}
    if any(made.get(key) != said[key] for key in ("count", "mean", "std")):
        raise DiffersError("expected the means of columns that follow from their sums; got others")
