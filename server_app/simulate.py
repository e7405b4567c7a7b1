"""Run the app in Flower's simulation engine, in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any


def simulate(run_config: Mapping[str, Any], nodes: int = 0) -> None:
    """Run the ServerApp and virtual nodes; returns when the run is over.

    The nodes only spread the work: results do not depend on their number. Flower's ``flwr run`` does the
    same through a local SuperLink, a bundle and further processes.

    Args:
        run_config: Run-config keys.
        nodes: Virtual SuperNodes; 0 = one per CPU, so that every core trains.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    nodes = nodes or cpus
    # Settings of the engine, unless the user has his own: no usage reports from a library call.
    for key, value in {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }.items():
        os.environ.setdefault(key, value)
    from flwr.simulation import run_simulation

    from client_app.app import make_app as make_client_app
    from server_app.app import make_app as make_server_app

    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = {**run_config, "min-nodes": nodes}
    gpus = _gpus()
    actors = min(cpus, nodes)
    run_simulation(
        server_app=make_server_app(config),
        client_app=make_client_app(config),
        num_supernodes=nodes,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": gpus / actors if gpus else 0.0},
            "init_args": {"num_cpus": actors, "logging_level": logging.ERROR, "log_to_driver": False},
        },
    )


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
