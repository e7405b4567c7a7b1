"""``python -m tests.bench.stock DATA FOLDER ROUNDS``: the stock app in Flower's simulation, two actors."""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.simulation import run_simulation

from tests.bench.stock.client_app import app
from tests.bench.stock.server_app import make_app
from tests.bench.stock.task import CLIENTS

if __name__ == "__main__":
    root, folder, rounds = sys.argv[1:]
    run_simulation(
        server_app=make_app(root, Path(folder), int(rounds)),
        client_app=app,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}},
    )
