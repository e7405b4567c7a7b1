"""Repeat an asynchronous run of a link in the simulation, with its recorded order of arrival."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.engines.simulate import simulate
from server_app.results.folder import CONFIG, RunFolder, no_run
from server_app.results.lines import Row
from server_app.run.data_card import server_data
from server_app.run.logs.arrivals import finished_order_of
from server_app.run.repeat import keys_of_run
from task.catalogue.algorithms import ALGORITHMS
from task.errors import ConfigError, StateError
from task.references import check_origin
from task.resolve.read import read_config


@dataclass(frozen=True)
class Replayed:
    """The outcome of a replay."""

    rounds: int  # number of repeated rounds
    of: int  # planned number of rounds
    model: str  # SHA-256 of the last model of the run
    differs: int  # the first round after which the models differ; 0 = none
    got: str  # SHA-256 of the model there, or of the last one
    updates: int  # that the run used
    refused: int
    lost: int  # starts that it gave up
    notes: tuple[str, ...]  # differences to the original run


def replay(run: Path, nodes: int = 0, say: Callable[[str], object] = lambda line: None) -> Replayed:
    """Repeat the rounds of a run, and compare the model after each of them.

    Args:
        run: A result folder.
        nodes: Virtual nodes; 0 = one per CPU.
        say: Shows a line before it begins.

    Raises:
        BouquetError: It is no run that can be done again here, or its files are damaged.
    """
    folder = RunFolder(run)
    if not (run / CONFIG).exists():
        raise no_run(f"expected a result folder with {CONFIG}", run)
    record = folder.config()
    _check_order(run, record["run"])
    rows = folder.rounds(unfinished=True)
    last = int(rows[-1]["round"]) if rows else 0
    if not last:
        raise StateError(f"{run}: expected at least one round to repeat; got none")
    order = finished_order_of(folder)
    if order.steps() < last:
        raise order.too_short(order.steps() + 1)
    keys, notes = keys_of_run(run)
    check_origin(keys, run / CONFIG)
    result = folder.result()
    total = int(record["run"]["num-server-rounds"])
    if result is None or result.get("stopped"):
        if last < total and read_config(keys).horizon:
            raise ConfigError(
                f"{run}: expected a finished run, as its rounds depend on their number "
                f"(num-server-rounds); got {last} of {total} rounds. Resume it first"
            )
        keys["num-server-rounds"] = last
    _check_data(run, record, keys)
    say(f"repeating {last} rounds of {run} in the simulation ...")
    with tempfile.TemporaryDirectory(prefix="bouquet-replay-") as place:
        here = {"runs-dir": place, "state-dir": f"{place}/state", "run-name": "replay", "progress": "none"}
        done = RunFolder(simulate({**keys, **here}, nodes, fresh=True, follows=[order]).path)
        models = {int(row["round"]): str(row["model_sha256"]) for row in done.rounds()}
    differs = next((r for r in (row["round"] for row in rows) if models.get(r) != _model(rows, r)), None)
    at = last if differs is None else int(differs)
    return Replayed(
        rounds=last,
        of=total,
        model=_model(rows, at),
        differs=0 if differs is None else at,
        got=models.get(at, "none"),
        updates=sum(row["answered"] for row in rows),
        refused=sum(len(row["selected"]) - row["answered"] for row in rows),
        lost=order.num_lost(last),
        notes=tuple(notes),
    )


def _model(rows: list[Row], server_round: int) -> str:
    return next(str(row["model_sha256"]) for row in rows if row["round"] == server_round)


def _check_order(run: Path, keys: Row) -> None:
    """Refuse a run whose order of arrival is not written down.

    Raises:
        ConfigError: Saying how to do it again.
    """
    entry = ALGORITHMS.get(str(keys["algorithm"]))
    if keys.get("order-of-arrival") == "real":
        return
    again = f'"bouquet run --from {run}" ends in the same bytes'
    if entry is None or not entry.asynchronous:
        raise ConfigError(
            f'{run}: expected an asynchronous run (order-of-arrival = "real"); got algorithm '
            f'"{keys["algorithm"]}", whose result does not depend on the order of arrival: {again}'
        )
    raise ConfigError(
        f'{run}: expected a run with order-of-arrival = "real"; got "virtual", whose order '
        f"follows from the keys: {again}"
    )


def _check_data(run: Path, record: Row, keys: dict[str, Any]) -> None:
    """Refuse a run whose data are not here.

    Raises:
        BouquetError: Saying what is.
    """
    was = record.get("data") or {}
    if "fingerprint" not in was:
        raise ConfigError(
            f"{run}: expected a run on data of this machine; got one whose data stayed at the nodes "
            f'(dataset = "{record["run"]["dataset"]}"), so only those nodes can train on them'
        )
    dataset = server_data(read_config(keys))
    got = dataset.fingerprint if dataset else "none"
    if got != was["fingerprint"]:
        raise ConfigError(
            f"{run}: expected the data of the run, SHA-256 {was['fingerprint'][:12]}...; got {got[:12]}... "
            f"from {dataset.source if dataset else 'nowhere'}. Restore the former data (run-config keys "
            '"data-dir", "data-path")'
        )
