"""Run the app in Flower's simulation engine, in this process.

Start-up is a chain of waits, so its links run side by side: while Ray's processes come up, a thread imports
torch and Flower and opens the data; Ray's workers import the ClientApp before they are given work, and the
actors take over those workers instead of starting their own.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

# Settings of the engine, unless the user has his own: no usage reports from a library call.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_preload_python_modules": "client_app.app",
}

LOOK_S = 0.002


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
    actors = min(cpus, nodes)
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    config = {**run_config, "min-nodes": nodes}
    with ThreadPoolExecutor(1) as background:
        warm = background.submit(_warm, config)
        import ray

        ray.init(num_cpus=actors, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
        with _ctrl_c_ends_it(), _prompt_delivery():
            gpus = warm.result()
            _start(config, nodes, gpus / actors)


def _warm(config: Mapping[str, Any]) -> int:
    """Import what the run needs and open its data; return the number of GPUs."""
    import flwr.simulation
    import torch

    import client_app.app
    import server_app.app

    server_app.app.prepare(config)
    del flwr, client_app
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@contextmanager
def _ctrl_c_ends_it() -> Iterator[None]:
    """End the process at Ctrl-C or SIGTERM.

    Flower's engine runs the ServerApp in a thread that knows nothing of the signal and would go on waiting
    for replies. All that a run leaves is written atomically, so the process can end at once.
    """
    import ray

    def end(number: int, frame: object) -> None:
        ray.shutdown()
        print(
            "\nstopped by the user; `--resume` goes on from the last checkpoint", file=sys.stderr, flush=True
        )
        os._exit(128 + number)

    before = {s: signal.signal(s, end) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _prompt_delivery() -> Iterator[None]:
    """Let the engine hand out messages at once.

    Flower's engine looks for new messages ten times a second, so that a round lasts a multiple of 0.1 s
    whatever the work in it. Its messenger is replaced by one that looks every few milliseconds; on a
    version of Flower that is built otherwise it stays as it is, and so does the pace.
    """
    try:
        from flwr.server.superlink.fleet.vce import vce_api

        original = vce_api.add_messages_to_queue
        known = list(inspect.signature(original).parameters) == ["state", "queue", "nodes_mapping", "f_stop"]
    except (ImportError, AttributeError):
        known = False
    if not known:
        yield
        return
    vce_api.add_messages_to_queue = _messenger
    try:
        yield
    finally:
        vce_api.add_messages_to_queue = original


def _messenger(state: Any, queue: Any, nodes_mapping: Mapping[int, int], f_stop: Any) -> None:
    """Move each node's next message into the workers' queue until the run is over."""
    while not f_stop.is_set():
        began = time.perf_counter()
        for node in nodes_mapping:
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)
        # With very many nodes a look takes long: it must not keep a core busy.
        f_stop.wait(max(LOOK_S, 9 * (time.perf_counter() - began)))


def _start(config: Mapping[str, Any], nodes: int, gpus_per_actor: float) -> None:
    from flwr.simulation import run_simulation

    from client_app.app import make_app as make_client_app
    from server_app.app import make_app as make_server_app

    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app=make_server_app(config),
        client_app=make_client_app(config),
        num_supernodes=nodes,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": gpus_per_actor}},
    )
