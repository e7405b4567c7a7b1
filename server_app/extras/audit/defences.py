"""Run one round with a defence, then attack what the server received and the new model."""

from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, cast

import numpy as np
from flwr.serverapp import Grid

from server_app.engines.simulate import simulate
from server_app.extras.audit.epsilon import initial_of
from server_app.extras.audit.inversion import Images, Rebuilt, attack, pixels
from server_app.extras.audit.wire import Tap, changes_heard
from server_app.results.folder import MODEL, RunFolder
from task.datasets.skew import load_partitioned
from task.models.frozen import use
from task.numerics.arrays import only
from task.resolve.model_card import read_model
from task.resolve.read import read_config
from task.resolve.run_model import model_of, parts_of
from task.storage.files import make_folder


@dataclass(frozen=True)
class Attacked:
    """What became of the first client's images."""

    originals: Images
    server: Rebuilt | None  # from its upload; None if the server hears no upload of one client
    reader: Rebuilt  # from the model before and after the round
    seconds: float

    def report(self) -> dict[str, Any]:
        """Return what audit.json says."""

        def of(rebuilt: Rebuilt) -> dict[str, Any]:
            return {"psnr": rebuilt.mean, "best": max(rebuilt.psnr), "label": rebuilt.label}

        server = of(self.server) if self.server else None
        return {"server": server, "reader": of(self.reader), "seconds": self.seconds}


def attack_run(keys: Mapping[str, Any], nodes: int, steps: int, log: Path) -> Attacked:
    """Run a round, and attack the first client: its upload, and the model.

    There are as many `nodes` as clients, so that each sends for itself. What the run prints goes into `log`.

    Raises:
        BouquetError: The run fails, or cannot be attacked.
    """
    began, config, taps = monotonic(), read_config(keys), list[Tap]()

    def watched(grid: Grid) -> Grid:
        taps.append(Tap(grid))
        return cast(Grid, taps[0])

    make_folder(log.parent)
    with log.open("a") as file, redirect_stdout(file), redirect_stderr(file):
        path = simulate(keys, nodes, watched=watched).path
    folder = RunFolder(path)
    card, after = read_model(path / MODEL)
    dataset, clients = load_partitioned(config)
    model = model_of(config, card.input_shape, card.num_classes)
    parts = parts_of(model, config)
    use(model, only(after, parts.frozen))
    parameters = parts.trainable
    before, rows = initial_of(folder), np.asarray(clients.train(0))
    moved = {n: np.subtract(after[n], before[n], dtype=np.float64) for n in parameters}
    heard = changes_heard(config, taps[0], parameters).get(clients.names[0])
    server = attack(model, dataset, rows, heard, steps) if heard else None
    reader = attack(model, dataset, rows, moved, steps)
    originals = pixels(dataset, dataset.inputs(rows))[: len(reader.psnr)]
    return Attacked(originals, server, reader, monotonic() - began)
