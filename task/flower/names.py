"""Manifest of Flower's private names that the app uses: why, and what breaks without them.

Flower documents `flwr.app`, `flwr.clientapp`, `flwr.serverapp`, `flwr.simulation` and `flwr.common`; any
release may change the rest. Only `task.flower` and `server_app.deploy.flower` use the rest, and
`server_app.deploy.flower.names` lists what is used by the processes of a deployment.
"""

import contextlib
import enum
import hashlib
import importlib
import inspect
import re
from dataclasses import dataclass
from functools import cached_property
from textwrap import dedent
from types import ModuleType
from typing import Any, Protocol

LETTERS = 56  # of a shape; a longer one ends with its hash
NONE = "none"  # the shape of what is not there


@dataclass(frozen=True)
class Use:
    """One use of names that are not public.

    Attributes:
        why: What they are used for.
        breaks: What happens without them.
        table: A module or class, below it, indented, its names and the shape of each, see `shape`. A text in
            quotes is one that the module's source must contain. Where supported versions differ, a name has
            a line for each of its shapes; ``none`` is that of a version without it.
    """

    why: str
    breaks: str
    table: str

    @cached_property
    def names(self) -> dict[str, str]:
        """The shapes by dotted path, with `` | `` between those of one name."""
        found: dict[str, str] = {}
        owner = ""
        for line in dedent(self.table).strip().splitlines():
            if not line.startswith(" "):
                owner = line
            else:
                match = re.fullmatch(r'\s+(\w+|".*")(.*)', line)
                assert match, line
                path = f"{owner}.{match[1]}"
                found[path] = f"{found[path]} | {match[2]}" if path in found else match[2]
        return found


def changes(*uses: Use) -> list[str]:
    """Return a line for each name that this version of Flower lacks, or has in another shape."""
    return [
        f"{path}: expected {' or '.join(one.strip(' :=') for one in _alternatives(expected)) or 'it'}; "
        f"got {found.strip(' :=')}. Used for: {use.why} Without it: {use.breaks}"
        for use in uses
        for path, expected in use.names.items()
        if (found := NONE if (one := shape(path)) is None else one.strip()) not in _alternatives(expected)
    ]


def _alternatives(expected: str) -> list[str]:
    return [one.strip() for one in expected.split(" | ")]


def shape(path: str) -> str | None:
    """Return what callers of a name rely on; None if there is no such name.

    Functions and classes: the parameters, with ``=`` after those that have a default. Protobuf messages,
    tables of a database and enumerations: the fields. Numbers and strings: the value.
    """
    owner, quote, text = path.partition('."')
    if quote:
        module = _find(owner)
        return "" if module is not None and text.strip('"') in inspect.getsource(module) else None
    owner, _, name = path.rpartition(".")
    found = _find(path)
    if found is None:
        parent = _find(owner)
        sets = re.search(rf'\bself\.{name}\b|"{name}"', _source(parent)) is not None
        return ": attribute" if sets else None
    whole = _shape(found)
    if len(whole) <= LETTERS:
        return whole
    beginning = whole[: LETTERS - 12].rpartition(" ")[0]
    return f"{beginning} ... {hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _source(cls: Any) -> str:
    """Return what Flower wrote of a class and its bases, "" if that cannot be read."""
    bases = [c for c in cls.__mro__ if c.__module__.split(".")[0] == "flwr"] if inspect.isclass(cls) else []
    with contextlib.suppress(OSError):
        return "\n".join(inspect.getsource(c) for c in bases)
    return ""


def _find(path: str) -> Any:
    """Return what a dotted path names, None if there is none; a module hides its package's attribute."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            of_class = getattr(type(found), name, None)  # its value may not be there yet
            found = of_class if isinstance(of_class, property) else getattr(found, name, None)
        return found
    return None


def _shape(found: Any) -> str:
    if isinstance(found, ModuleType):
        return ": module"
    if isinstance(found, int | float | str) and not isinstance(found, enum.Enum):
        return f" = {found!r}"
    if hasattr(found, "DESCRIPTOR"):
        return f": {' '.join(found.DESCRIPTOR.fields_by_name) or 'no fields'}"
    if hasattr(found, "__table__"):
        return f": {' '.join(found.__table__.columns.keys())}"
    if isinstance(found, enum.EnumType):
        members: list[enum.Enum] = list(found)
        return f": {' '.join(f'{m.name}={m.value}' for m in members)}"
    if inspect.isclass(found) and (
        values := {k: v for k, v in vars(found).items() if k.isupper() and isinstance(v, int | str)}
    ):
        return f": {' '.join(f'{k}={v}' for k, v in values.items())}"
    if isinstance(found, property):
        return ": property"
    if not inspect.isroutine(found) and not inspect.isclass(found):
        return ""
    if (
        Protocol in getattr(found, "__bases__", ())
        or getattr(found, "__init__", None) is BaseException.__init__
    ):
        return ""  # versions of Python differ in the parameters that they show
    return _parameters(inspect.signature(found))


def _parameters(signature: inspect.Signature) -> str:
    text: list[str] = []
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not any(re.match(r"\*(?!\*)", t) for t in text):
            text.append("*")
        text.append(f"{stars.get(p.kind, '')}{p.name}{'' if p.default is p.empty else '='}")
    return f"({', '.join(text)})"


REPLY_TO = Use(
    "the first answer to any copy of an order counts as the answer to the order.",
    "a reply to a copy matches no message, and its client counts as lost.",
    """
        flwr.app.metadata.Metadata
            _reply_to_message_id: attribute
    """,
)

ERRORS = Use(
    "sending an order again that was lost, and no other; calling a SuperLink in trouble again.",
    "a lost order is not sent again, or a run goes on without its SuperLink.",
    """
        flwr.common.constant
            ErrorCode: UNKNOWN=0 LOAD_CLIENT_APP_EXCEPTION=1 ... 00c8353a
        flwr.supercore.run
            RunNotRunningException
    """,
)

NODES = Use(
    "seeing that a node left and came back, from when it was registered and activated.",
    "an order to a node that was restarted is not sent again.",
    """
        flwr.serverapp.Grid
            get_nodes(self)
        flwr.proto.node_pb2
            NodeInfo: node_id owner_aid owner_name status ... be2640e6
    """,
)

BUDGET = Use(
    "limits on bytes and time of one reply while it is fetched; Flower has none.",
    "a hostile reply of a few megabytes fills the memory, or holds up the round for two hours.",
    """
        flwr.superlink.grid.http_grid
            pull_objects(object_ids, pull_object_fn, *, ... 7713cb0d
        flwr.app.Array
            inflate(object_content, children=)
        flwr.app.message.array
            "arraychunk_ids"
        flwr.supercore.inflatable.inflatable_object
            get_object_body(object_content, cls)
            get_object_children_ids_from_object_content(object_content)
    """,
)

APP = Use(
    "bundling the app as `flwr build` does.",
    "`bouquet run --link` fails.",
    """
        flwr.cli.build
            build_fab_from_files(files)
    """,
)

LOGGER = Use(
    "lines in Flower's own log.",
    "our lines are not shown.",
    """
        flwr.supercore.logger
            LOGGER_NAME = 'flwr'
    """,
)

HELD = Use(
    "asking our link, through the grid's own client, which replies are there.",
    "a deployed run polls for replies: a round takes up to a quarter of a second more.",
    """
        flwr.superlink.grid.http_grid
            push_objects(objects, push_object_fn, *, ... 487ed947
        flwr.superlink.grid.http_grid.HttpGrid
            _runtime_client: property
        flwr.supercore.runtime.RuntimeHttpClient
            _unary_unary(self, *, path, rpc_method, request, response_type)
            _unary_unary(self, *, path, rpc_method, request, ... 192e0868
        flwr.proto.runtime_pb2
            PullAppMessagesRequest: message_ids
    """,
)

ENGINE = Use(
    "Flower's simulation engine around our workers, without Ray.",
    "`bouquet run` fails.",
    """
        flwr.server.superlink.fleet.vce.vce_api
            run_api(app_fn, backend_fn, nodes_mapping, ... 8f782fee
            _register_nodes(num_nodes, state_factory)
            _register_node_info_stores(nodes_mapping, run, app_dir=)
        flwr.server.superlink.fleet.vce.metrics
            VceMetrics(clientapp_runtime=)
        flwr.server.superlink.fleet.vce.backend
            Backend(backend_config)
        flwr.server.superlink.fleet.vce.backend.Backend
            build(self, app_fn)
            num_workers: property
            is_worker_idle(self)
            process_message(self, message, context)
            terminate(self)
        flwr.clientapp.client_app
            ClientAppException(message)
        flwr.server.superlink.linkstate
            LinkState()
            LinkStateFactory(database, federation_manager, objectstore_factory)
            InMemoryLinkState(federation_manager, object_store)
        flwr.server.superlink.linkstate.LinkStateFactory
            state(self)
        flwr.server.superlink.linkstate.InMemoryLinkState
            run_ids: attribute
            task_store: attribute
            store_message_ins(self, message)
            store_message_res(self, message)
            get_message_ins(self, node_id, limit, *, run_id=)
        flwr.server.superlink.linkstate.in_memory_linkstate
            RunRecord(run, federation_config=, logs=, ... 52220ab9
        flwr.server.superlink.linkstate.utils
            generate_rand_int_from_bytes(num_bytes, exclude=)
        flwr.common.constant
            RUN_ID_NUM_BYTES = 8
            TASK_ID_NUM_BYTES = 8
            SUPERLINK_NODE_ID = 1
        flwr.supercore.constant
            FLWR_IN_MEMORY_DB_NAME = ':flwr-in-memory:'
            NOOP_FEDERATION_ID = '@none/default'
        flwr.supercore.object_store
            ObjectStoreFactory(database=)
        flwr.supercore.run
            Run(run_id, fab_id, fab_version, fab_hash, ... 37c58b35
        flwr.supercore.run.Run
            create_empty(run_id)
        flwr.supercore.task_identity
            TaskIdentity()
        flwr.supercore.task_identity.TaskIdentity
            run_id: property
            task_id: property
            node_id: property
        flwr.superlink.federation
            NoOpFederationManager(simulation=)
        flwr.superlink.grid
            InMemoryGrid(state_factory, pull_interval=)
        flwr.superlink.grid.InMemoryGrid
            set_run(self, run)
        flwr.proto.task_pb2
            Task: task_id type run_id status pending_at ... 130b5a3d
    """,
)

PACE = Use(
    "messages that go round without the pauses of the simulation engine.",
    "each round of a simulation takes a multiple of 0.1 s, and its end a second.",
    """
        flwr.server.superlink.fleet.vce.vce_api
            add_messages_to_queue(state, queue, nodes_mapping, f_stop)
            Queue(maxsize=)
    """,
)

USES = (REPLY_TO, ERRORS, NODES, BUDGET, HELD, APP, LOGGER, ENGINE, PACE)
