"""Simulate a federation: the ServerApp in this process, virtual nodes in workers forked from it.

The ServerApp runs in the main thread, so that Ctrl-C reaches it.

This module imports all that a run needs, torch included.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from flwr.serverapp import Grid

from client_app.app import make_app
from server_app.app import prepare, run
from server_app.engines.workers import Workers, may_fork
from server_app.takeout.result import RunResult
from strategies.engine.journal import FeatureLog
from task import trust
from task.errors import ConfigError
from task.features import check_simulated, fewest_nodes
from task.flower.simulation import VirtualNodes
from task.numerics import pages
from task.numerics.devices import gpus_here
from task.objects import Sent
from task.references import references_in
from task.resolve.read import read_config
from task.text import logger


def available_cpus() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _take_over(said: trust.Words, given: Sent) -> None:
    """Use in a worker the code that the user has named in this process, and the objects of the run."""
    trust.take_over(said)
    given.take_over()


def simulate(
    run_config: Mapping[str, Any],
    nodes: int = 0,
    *,
    gpus: int = 0,
    fresh: bool = False,
    watched: Callable[[Grid], Grid] = lambda grid: grid,
    follows: Sequence[FeatureLog] = (),
) -> RunResult:
    """Run the ServerApp and virtual nodes; return the run's result when it is over.

    The nodes only spread the work: results do not depend on their number. Flower's ``flwr run`` does the
    same through a local SuperLink, a bundle and Ray. It may be called often in one process.

    With `nodes` = 0 there is a virtual node per CPU, so that every core trains, and at least the number
    that the run's features need. They take turns at the first `gpus` of this machine, 0 = all; with a
    number, there is by default a node per GPU. `fresh` says that this process has computed nothing in torch
    yet; otherwise workers of several threads are not forked from it. `watched` returns the grid that the
    ServerApp uses, around the nodes' own. `follows` are the logs of a run on a link, which this one
    repeats.

    Raises:
        ConfigError: The nodes are too few for a feature of the run or the GPUs, or there are fewer GPUs.
        BouquetError: As `server_app.app.run`.
    """
    checked = read_config(run_config)
    if not follows:
        check_simulated(checked)
    cpus, (least, why) = available_cpus(), fewest_nodes(checked)
    if 0 < nodes < least:
        raise ConfigError(f"--nodes: expected at least {least}, which {why} needs; got {nodes}")
    if gpus > (there := len(gpus_here()) if gpus else 0):
        raise ConfigError(f"--gpus: expected at most {there}, those that this process may use; got {gpus}")
    if gpus and (checked.train.device == "cpu" or checked.train.portable):
        raise ConfigError('--gpus: expected with device = "auto" or "cuda", and portable = false')
    if 0 < nodes < gpus:
        raise ConfigError(f"--gpus: expected at most one for each of {nodes} nodes (--nodes); got {gpus}")
    nodes = nodes or max(gpus or cpus, least)
    config = {**run_config, "min-nodes": nodes}
    with ExitStack() as ends:
        ends.callback(pages.in_use, use=pages.in_use(use=True))
        ends.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        ends.callback(torch.set_num_threads, torch.get_num_threads())  # the evaluation here takes one
        prepare(config)  # before the workers, so that they inherit the opened data
        inherit = partial(_take_over, trust.words(), Sent(references_in(config)))
        app_fn = partial(make_app, config, inherit=inherit)
        checked = read_config(config)
        # Counting GPUs may start their driver, which does not survive a fork.
        fork = may_fork() and not gpus and (fresh or checked.train.threads == 1)
        workers = Workers(app_fn, max(min(cpus, nodes), gpus), fork=fork, gpus=gpus)
        grid = VirtualNodes(workers.answer, nodes, workers.count)

        def stop() -> None:
            workers.terminate()  # first, so that nothing waits for their unfinished work
            grid.close()

        ends.callback(stop)
        # The workers use all cores, so a concurrent evaluation would save nothing.
        return RunResult(
            run(watched(grid), checked, rounds_over=stop, overlap=False, stop_is_end=True, follows=follows)
        )
