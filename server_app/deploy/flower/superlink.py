"""Flower's SuperLink in a process of ours: ``python -m server_app.deploy.flower.superlink --max-reply N``.

It is `flower_superlink`, with the same options and these differences: the Fleet API has limits
(server_app/deploy/flower/limits.py) and checks (fleet.py), the Control API asks for the kit's secret
(gate.py), messages survive the death of the process that has them (delivery.py), an open log stream does not
hold up its end, and it ends with the process that started it.
"""

import argparse
import asyncio
import gc
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import grpc
import uvicorn
from alembic.util import CommandError
from fastapi import FastAPI
from flwr.common.constant import FLWR_INTERNAL_GRPC_CONTROL_API
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.superlink.servicer.runtime import runtime_handlers
from uvicorn.main import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server_app.deploy.flower.delivery import Delivery
from server_app.deploy.flower.economy import economise
from server_app.deploy.flower.fleet import Fleet
from server_app.deploy.flower.fleet_relay import FirstRequest
from server_app.deploy.flower.gate import Gate
from server_app.deploy.flower.limits import (
    FRAME_BYTES,
    Limits,
    NodeNotes,
    RateLimiter,
    connections,
    raise_files,
)
from server_app.deploy.flower.names import LINK
from server_app.deploy.flower.replies import confirm_reply, pull_replies
from server_app.deploy.flower.runtime_api import RuntimeCalls
from server_app.deploy.host.app_integrity import APPS, differs
from server_app.deploy.host.processes import end_with_parent
from task import timing
from task.errors import ConfigError
from task.flower.names import changes

logger = logging.getLogger("flwr")

# By its name: the package hides the module behind its function.
stock: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
servers: Any = importlib.import_module("flwr.supercore.grpc")

PLACES = "places.json"  # in the folder of the database
# Lines that fill the log or mislead: what the link asks every other second; from 1.40 on, Flower's HTTP
# Fleet API, to which the gate lets no node, where the link's nodes come over gRPC.
ROUTINE = (
    "ControlServicer.ListRuns",
    "ControlServicer.ListNodes",
    "Starting the SuperLink Fleet HTTP API",
    "The `--fleet-api-address` argument is deprecated",
)


def patch(limits: Limits, code: str = "") -> None:
    """Give Flower's SuperLink, not yet started, the limits and the delivery, and the code of its app.

    Raises:
        ConfigError: This version of Flower is built otherwise.
    """
    if changed := changes(*LINK):
        raise ConfigError(
            f"this version of flwr cannot serve a federation: {' '.join(changed)} "
            "Install a version that Bouquet names: pip install 'flwr>=1.39,<1.43'"
        )
    run_fleet = stock._run_fleet_api_grpc_rere
    deliveries: list[Delivery] = []  # one, once the SuperLink has started

    class Lifespan(stock.SuperLinkLifespan):  # type: ignore[misc]
        """Puts the parts together once the state is there, and before anything is served."""

        def startup(self) -> None:
            state = self.state_factory.state()
            if not isinstance(state, SqlLinkState):
                raise ConfigError("expected --database FILE, which stores the messages; got none")
            self.traffic = economise(state)
            delivery = Delivery(state)
            deliveries.append(delivery)
            delivery.survive()
            folder = Path(str(self.state_factory.database)).parent
            places, apps = NodeNotes(folder / PLACES), NodeNotes(folder / APPS)
            for node, app in apps.all():
                if differs(app, code):  # admitted by an earlier SuperLink; its next sign of life is refused
                    state.deactivate_node(int(node))
            limiter = RateLimiter(
                limits, state.get_node_id_by_public_key, partial(_name_of, state), delivery.refuse, places
            )
            changes = {
                "FleetServicer": partial(Fleet, limiter=limiter, delivery=delivery, apps=apps, code=code),
                "_run_fleet_api_grpc_rere": partial(serve_fleet, run_fleet, limiter),
                "GRPC_MAX_MESSAGE_LENGTH": FRAME_BYTES,
            }
            vars(stock).update(changes)
            vars(runtime_handlers).update(
                pull_messages=pull_replies(delivery, runtime_handlers.pull_messages),
                confirm_message_received=confirm_reply(delivery, runtime_handlers.confirm_message_received),
            )
            threading.Thread(target=_sweep, args=(delivery,), daemon=True).start()
            super().startup()
            gc.collect()
            gc.freeze()  # the modules' objects stay; a collection need not traverse them

        def shutdown(self) -> None:
            for delivery in deliveries:
                delivery.arrivals.close()
                delivery.forget_confirmed()
                self.traffic.write()
            super().shutdown()

    calls = RuntimeCalls(lambda: deliveries[0])
    vars(stock).update(SuperLinkLifespan=Lifespan, uvicorn=_Uvicorn(stock.uvicorn, calls))


def serve_fleet(
    run_fleet: Any, limiter: RateLimiter, *, interceptors: Sequence[grpc.ServerInterceptor], **more: Any
) -> grpc.Server:
    """Run the Fleet API with the limiter before all others, and bounds on its connections."""
    bounded = _Grpc(servers.grpc, connections(raise_files()))
    servers.grpc = bounded
    try:
        server = run_fleet(interceptors=[limiter, *interceptors], **more)
    finally:
        servers.grpc = grpc
    if not bounded.used:
        raise ConfigError(
            "this version of flwr creates its gRPC server elsewhere: the number of connections is not limited"
        )
    return server


class _Grpc:
    """grpc, which makes servers with further options."""

    def __init__(self, theirs: Any, options: Sequence[tuple[str, int]]) -> None:
        self._theirs, self._options = theirs, options
        self.used = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    def server(self, *args: Any, options: Sequence[tuple[str, Any]], **more: Any) -> grpc.Server:
        """Make a server."""
        self.used = True
        return self._theirs.server(*args, options=[*options, *self._options], **more)


def _name_of(state: SqlLinkState, node: int) -> str:
    """Return the name of a node, for the log."""
    found = state.get_node_info(node_ids=[node])
    return (found[0].name if found else "") or str(node)


class _Server(uvicorn.Server):
    """uvicorn's server, but it does not check ten times a second whether it is to end: a signal wakes it."""

    _wake: Callable[[], object] | None = None

    async def main_loop(self) -> None:
        """Return when it is to end."""
        over = asyncio.Event()
        self._wake = partial(asyncio.get_running_loop().call_soon_threadsafe, over.set)
        if not await self.on_tick(0):
            await over.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal that ends it."""
        super().handle_exit(sig, frame)
        if self._wake:
            self._wake()


class _Http(FirstRequest, HttpToolsProtocol):
    """A connection to the Control and Runtime APIs."""


class _Uvicorn:
    """uvicorn with the gate before the application; it does not wait for open streams without limit."""

    def __init__(self, theirs: ModuleType, calls: RuntimeCalls) -> None:
        self._theirs, self._calls = theirs, calls

    def run(self, *, app: FastAPI, **options: Any) -> None:
        """Run the HTTP server until a signal ends it; the link's own questions fill no log."""
        options |= {"access_log": False, "timeout_graceful_shutdown": timing.LOG_STREAMS_S}
        options |= {"date_header": False, "timeout_keep_alive": timing.FIRST_REQUEST_S}
        config = self._theirs.Config(Gate(app, self._calls), http=_Http, ws="none", **options)
        server = _Server(config)
        with suppress(KeyboardInterrupt):
            server.run()
        if not server.started:
            sys.exit(STARTUP_FAILURE)


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(ROUTINE)


def _sweep(delivery: Delivery) -> None:
    pause = threading.Event()
    while not pause.wait(timing.SWEEP_S):
        try:
            delivery.sweep()
        except Exception as err:  # such as a locked database: the next time
            logger.warning("cannot delete old messages: %s", err)


def main(arguments: Sequence[str]) -> None:
    """Run the SuperLink until a signal ends it.

    Raises:
        ConfigError: This version of Flower is built otherwise, or its database is a newer one's.
    """
    end_with_parent()
    parser = argparse.ArgumentParser(prog="server_app.deploy.flower.superlink", description=__doc__)
    parser.add_argument("--max-reply", type=int, required=True, help="bytes of a reply")
    parser.add_argument("--max-rate", type=int, required=True, help="replies of a node in a minute")
    parser.add_argument("--app", default="", help="code of the app; nodes with different code are refused")
    ours, theirs = parser.parse_known_args(arguments)
    patch(Limits(ours.max_reply, ours.max_rate), ours.app)
    logger.addFilter(_is_news)
    os.environ.pop(FLWR_INTERNAL_GRPC_CONTROL_API, None)  # a second Control API, on all addresses
    os.environ["FLWR_INTERNAL_GRPC_FLEET_API"] = "1"  # the one Fleet API of 1.39; on demand from 1.40 on
    sys.argv = ["flower-superlink", *theirs]
    try:
        stock.flower_superlink()
    except CommandError as err:
        raise ConfigError(
            f"expected a database of flwr {version('flwr')} or older; got a newer one's ({err}). Install "
            "that version again, or move state/link.db away: the link then enrols its nodes again"
        ) from err


if __name__ == "__main__":
    main(sys.argv[1:])
