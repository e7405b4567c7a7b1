"""Run the app in Flower's simulation engine, in this process and workers forked from it.

The ServerApp runs in the main thread, so that Ctrl-C reaches it; the engine in another.

This module imports all that a run needs, torch included.
"""

import logging
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from client_app.app import make_app
from server_app.app import prepare, run
from server_app.engines.workers import Workers
from task.config.read import read_config
from task.flower.simulation import engine


def simulate(run_config: Mapping[str, Any], nodes: int = 0) -> None:
    """Run the ServerApp and virtual nodes; returns when the run is over.

    The nodes only spread the work: results do not depend on their number. Flower's ``flwr run`` does the
    same through a local SuperLink, a bundle and Ray. Call it once in a process: see `Workers`.

    With `nodes` = 0 there is a virtual SuperNode per CPU, so that every core trains.

    Raises:
        BouquetError: As `server_app.app.run`.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    nodes = nodes or cpus
    config = {**run_config, "min-nodes": nodes}
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        prepare(config)  # before the workers, so that they need not open the data again
        app_fn = partial(make_app, config)
        workers = Workers(app_fn, min(cpus, nodes))
        with engine(app_fn, workers, nodes) as (grid, stop):
            # The workers have all cores, and a concurrent evaluation costs what it saves.
            run(grid, read_config(config), rounds_over=stop, overlap=False, stop_is_end=True)
    finally:
        logger.setLevel(level)
