"""Flower's SuperLink in a process of ours: ``python -m server_app.deploy.flower.superlink --max-reply N``.

It is `flower_superlink`, with the same options and these differences: the Fleet API has limits
(server_app/deploy/calls/limits.py) and checks (fleet.py), the Control API asks for the kit's secret
(gate.py), messages survive the death of the process that has them (delivery.py), an open log stream does not
hold up its end, and it ends with the process that started it. Limits, checks and the secret guard: on a
Flower where they do not fit, nothing is started. Any other change that does not fit is left out.
"""

import argparse
import asyncio
import gc
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import grpc
import uvicorn
from alembic.util import CommandError
from fastapi import FastAPI
from flwr.common.constant import FLWR_INTERNAL_GRPC_CONTROL_API
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from uvicorn.main import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server_app.deploy.calls.fleet_relay import FirstRequest
from server_app.deploy.calls.limits import (
    FRAME_BYTES,
    Limits,
    NodeNotes,
    RateLimiter,
    connections,
    raise_files,
)
from server_app.deploy.flower.fleet import CheckedFleet
from server_app.deploy.flower.gate import Gate
from server_app.deploy.flower.names import (
    DELIVERY,
    ECONOMY,
    FLEET,
    GATE,
    OBJECTS,
    RECORDS,
    RETRIES,
    RUNTIME,
    SUPERLINK,
    TREES,
)
from server_app.deploy.flower.records import Records
from server_app.deploy.flower.runtime_api import RuntimeCalls
from server_app.deploy.host.app_integrity import APPS, LEFT_OUT, differs
from server_app.deploy.host.processes import end_with_parent
from server_app.deploy.host.replacing import replace
from task import timing
from task.errors import ConfigError
from task.flower.names import DEGRADES, Use, cannot_serve, changes, fits
from task.storage.files import write_json

if TYPE_CHECKING:
    from server_app.deploy.flower.delivery import Delivery

logger = logging.getLogger("flwr")

# By its name: the package hides the module behind its function.
stock: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
servers: Any = importlib.import_module("flwr.supercore.grpc")

PLACES = "places.json"  # in the folder of the database
# Lines that fill the log or mislead: the link's requests every other second; from 1.40 on, Flower's HTTP
# Fleet API, which the gate closes to nodes, while the link's nodes use gRPC.
ROUTINE_LINES = (
    "ControlServicer.ListRuns",
    "ControlServicer.ListNodes",
    "Starting the SuperLink Fleet HTTP API",
    "The `--fleet-api-address` argument is deprecated",
)


@dataclass
class Assembly:
    """What our SuperLink is made of; a patch replaces some of it.

    Attributes:
        state: Flower's, in a database.
        records: What the checks ask; a patch may deliver messages, too.
        fleet: Serves the nodes.
        closing: What is done before the state is closed.
    """

    state: SqlLinkState
    records: Records
    fleet: Callable[..., CheckedFleet] = CheckedFleet
    closing: list[Callable[[], object]] = field(default_factory=list)


@dataclass(frozen=True)
class Patch:
    """One of our changes to Flower's SuperLink that it can do without.

    Attributes:
        needs: The names that must fit, else it is left out; the first use says what that costs.
        apply: Applies it, once the state is there; imports what it needs.
    """

    needs: tuple[Use, ...]
    apply: Callable[[Assembly], None]


def _economise(made: Assembly) -> None:
    from server_app.deploy.flower.economy import economise

    made.closing += [sums.write for sums in economise(made.state)]


def _economise_trees(made: Assembly) -> None:
    from server_app.deploy.flower.objects import economise_trees

    economise_trees(made.state)


def _deliver(made: Assembly) -> None:
    from flwr.superlink.servicer.runtime import runtime_handlers

    from server_app.deploy.flower.delivery import Delivery
    from server_app.deploy.flower.fleet_delivery import Fleet
    from server_app.deploy.flower.replies import confirm_reply, pull_replies

    delivery = Delivery(made.state)
    made.records, made.fleet = delivery, Fleet
    delivery.survive()
    replace(
        runtime_handlers,
        pull_messages=pull_replies(delivery, runtime_handlers.pull_messages),
        confirm_message_received=confirm_reply(delivery, runtime_handlers.confirm_message_received),
    )
    made.closing[:0] = delivery.arrivals.close, delivery.forget_confirmed
    threading.Thread(target=_sweep, args=(delivery,), daemon=True).start()


GUARDS = (SUPERLINK, RECORDS, FLEET, GATE)  # limits and checks: without these no SuperLink is started
PATCHES = (  # in this order
    Patch((ECONOMY,), _economise),
    Patch((TREES, OBJECTS), _economise_trees),
    Patch((DELIVERY, TREES, OBJECTS), _deliver),
)
CALLS = (RUNTIME, *PATCHES[-1].needs)  # what the Runtime API's calls need
OTHERS = (RETRIES, *DEGRADES)  # that the link, or its ServerApps, can do without


def left_out() -> list[str]:
    """Return a line for each change to Flower that does not fit this version: why, and what that costs."""
    groups = [*(patch.needs for patch in PATCHES), CALLS, *((use,) for use in OTHERS)]
    return [
        f"Flower {version('flwr')} has another {changes(*needs)[0].partition(': ')[0]}, or none: "
        f"{needs[0].breaks}"
        for needs in groups
        if not fits(*needs)
    ]


def patch(limits: Limits, code: str = "") -> None:
    """Add the limits, the checks and all patches that fit to Flower's SuperLink before it starts.

    Raises:
        ConfigError: This version of Flower cannot be limited or checked.
    """
    if changed := changes(*GUARDS):
        raise ConfigError(cannot_serve(" ".join(changed).rstrip(".")))
    assembled: list[Assembly] = []  # one, once the SuperLink has started

    class Lifespan(stock.SuperLinkLifespan):  # type: ignore[misc]
        """Puts the parts together once the state is there, and before anything is served."""

        def startup(self) -> None:
            state = self.state_factory.state()
            if not isinstance(state, SqlLinkState):
                raise ConfigError("expected --database FILE, which stores the messages; got none")
            made = Assembly(state, Records(state))
            assembled.append(made)
            for one in PATCHES:
                if fits(*one.needs):
                    one.apply(made)
            folder = Path(str(self.state_factory.database)).parent
            write_json(folder / LEFT_OUT, without := left_out())
            for line in without:
                logger.warning("%s", line)
            places, apps = NodeNotes(folder / PLACES), NodeNotes(folder / APPS)
            for node, app in apps.all():
                if differs(app, code):  # admitted by an earlier SuperLink; its next heartbeat is refused
                    state.deactivate_node(int(node))
            name_of = partial(_name_of, state)
            refuse = made.records.refuse
            limiter = RateLimiter(limits, state.get_node_id_by_public_key, name_of, refuse, places)
            fleet = partial(made.fleet, limiter=limiter, records=made.records, apps=apps, code=code)
            vars(stock).update({"FleetServicer": fleet, "GRPC_MAX_MESSAGE_LENGTH": FRAME_BYTES})
            with bounded(limiter):
                super().startup()
            gc.collect()
            gc.freeze()  # the modules' objects stay; a collection need not traverse them

        def shutdown(self) -> None:
            for close in assembled[0].closing if assembled else ():
                close()
            super().shutdown()

    calls = RuntimeCalls(lambda: cast(Any, assembled[0].records)) if fits(*CALLS) else None
    vars(stock).update(SuperLinkLifespan=Lifespan, uvicorn=_Uvicorn(stock.uvicorn, calls))


@contextmanager
def bounded(limiter: RateLimiter) -> Iterator[None]:
    """Put the limiter before all calls of the Fleet API that Flower starts, and bound its connections.

    Raises:
        ConfigError: Flower started none, or made it elsewhere.
    """
    servers.grpc = theirs = _Grpc(servers.grpc, limiter, connections(raise_files()))
    try:
        yield
    finally:
        servers.grpc = grpc
    if not theirs.used:
        raise ConfigError(
            "this version of flwr creates its gRPC server elsewhere: nodes' calls and connections are not "
            "limited"
        )


class _Grpc:
    """grpc, which makes servers with the limiter before Flower's authentication and with further options."""

    def __init__(self, theirs: Any, limiter: RateLimiter, options: Sequence[tuple[str, int]]) -> None:
        self._theirs, self._limiter, self._options = theirs, limiter, options
        self.used = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    def server(
        self, *args: Any, options: Sequence[tuple[str, Any]], interceptors: Sequence[Any] = (), **more: Any
    ) -> grpc.Server:
        """Make a server."""
        limited: list[Any] = []
        for one in interceptors:
            if isinstance(one, NodeAuthServerInterceptor):
                limited.append(self._limiter)
                self.used = True
            limited.append(one)
        return self._theirs.server(*args, options=[*options, *self._options], interceptors=limited, **more)


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

    def __init__(self, theirs: ModuleType, calls: RuntimeCalls | None) -> None:
        self._theirs, self._calls = theirs, calls

    def run(self, *, app: FastAPI, **options: Any) -> None:
        """Run the HTTP server until a signal ends it; the link's own questions fill no log."""
        options |= {"access_log": False, "date_header": False, "proxy_headers": False}
        options["timeout_graceful_shutdown"] = timing.LOG_STREAMS_S
        options["timeout_keep_alive"] = timing.FIRST_REQUEST_S
        config = self._theirs.Config(Gate(app, self._calls), http=_Http, ws="none", **options)
        server = _Server(config)
        with suppress(KeyboardInterrupt):
            server.run()
        if not server.started:
            sys.exit(STARTUP_FAILURE)


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(ROUTINE_LINES)


def _sweep(delivery: "Delivery") -> None:
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
