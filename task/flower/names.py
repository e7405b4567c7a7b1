"""Manifest of Flower's private names that the app uses: why, and what breaks without them.

Flower documents `flwr.app`, `flwr.clientapp`, `flwr.serverapp`, `flwr.simulation` and `flwr.common`; any
release may change the rest. Only `task.flower` and `server_app.deploy.flower` use the rest, and
`server_app.deploy.flower.names` lists what is used by the processes of a deployment.

A name fits if what we need of it is there: more parameters, columns, fields or members are no difference.
"""

import contextlib
import enum
import importlib
import inspect
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from textwrap import dedent
from typing import Any

NEWEST_TESTED = (1, 42)  # version of Flower; `make compat` tests every one from the oldest on
INSTALL = 'pip install "flwr[simulation]=={}.{}.*"'.format(*NEWEST_TESTED)
MISSING = object()


@dataclass(frozen=True)
class Use:
    """One use of names that are not public.

    Attributes:
        why: What they are used for.
        breaks: What happens without them.
        table: A module or class, below it, indented, its names and what we need of each:

            * ``call(a, b, *, c)``: it takes a and b by position and c by name, and needs no other argument;
            * ``Row(a, b)``: of a table of a database, a row may have these columns alone;
            * ``Kind: a b=1``: the fields of a message or the columns that we read, the members of an
              enumeration, with the value if we rely on it;
            * ``NAME = 'value'``: the constant has this value;
            * ``name``: it is there, if only as an attribute that the class sets;
            * ``name?`` and one of these: a version that lacks the name fits;
            * a text in quotes: the module's source contains it.

            A line that is indented further continues the one before it.
    """

    why: str
    breaks: str
    table: str

    @cached_property
    def names(self) -> dict[str, str]:
        """What we need, by dotted path; it begins with ``?`` if the name may be missing."""
        found: dict[str, str] = {}
        owner = ""
        for line in re.sub(r"\n {8,}", " ", dedent(self.table)).strip().splitlines():
            if not line.startswith(" "):
                owner = line
            else:
                match = re.fullmatch(r'\s+(\w+|".*")(.*)', line)
                assert match, line
                found[f"{owner}.{match[1]}"] = match[2]
        return found


def changes(*uses: Use) -> list[str]:
    """Return a line for each name that does not fit in this version of Flower."""
    return [
        f"{path}: expected {need.strip('? :=') or 'it'}; got {found}. Used for: {use.why} "
        f"Without it: {use.breaks}"
        for use in uses
        for path, need in use.names.items()
        if (found := misfit(path, need))
    ]


@cache
def fits(*uses: Use) -> bool:
    """Return whether all that we need of some uses is there in this version of Flower."""
    return not changes(*uses)


def untested(flower: str = "") -> str:
    """Return a warning if a version of Flower, by default this one, is newer than those tested; else ""."""
    flower = flower or version("flwr")
    newest = ".".join(map(str, NEWEST_TESTED))
    if tuple(map(int, re.findall(r"\d+", flower)[:2])) <= NEWEST_TESTED:
        return ""
    return (
        f"Flower {flower} is newer than {newest}, the newest version that was tested with this app. "
        f"If something fails, install that: {INSTALL}"
    )


def cannot_serve(why: str) -> str:
    """Return the error of a link on a version of Flower that cannot be limited or checked."""
    return (
        f"Flower {version('flwr')} cannot serve a federation with limits and checks: {why}. Install the "
        f"newest version that was tested: {INSTALL}"
    )


def misfit(path: str, need: str) -> str:
    """Return what a name has instead of what we need, see `Use`; "" if it fits."""
    owner, quote, text = path.partition('."')
    if quote:
        module = find(owner)
        there = module is not MISSING and text.strip('"') in inspect.getsource(module)
        return "" if there else "none"
    found, may_lack, need = find(path), need.startswith("?"), need.removeprefix("?").strip()
    if found is MISSING:
        return "" if may_lack or (not need and _is_set(path)) else "none"
    if need.startswith("("):
        return _refusal(found, need.strip("()"))
    if need.startswith("="):
        return "" if repr(found) == need[1:].strip() else repr(found)
    members = _members(found) if need else {}
    wanted = [one.partition("=") for one in need[1:].split()]
    lacks = [k for k, _, value in wanted if k not in members or (value and str(members[k]) != value)]
    return f"none, or another value, of {' '.join(lacks)}" if lacks else ""


def find(path: str) -> Any:
    """Return what a dotted path names, `MISSING` if there is none; a module hides its package's attribute."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            of_class = getattr(type(found), name, None)  # its value may not be there yet
            found = of_class if isinstance(of_class, property) else getattr(found, name, MISSING)
        return found
    return MISSING


def _is_set(path: str) -> bool:
    """Return whether the source of a class, or of one of Flower's that it derives from, sets an attribute."""
    owner, _, name = path.rpartition(".")
    cls = find(owner)
    bases = [c for c in cls.__mro__ if c.__module__.split(".")[0] == "flwr"] if inspect.isclass(cls) else []
    with contextlib.suppress(OSError):  # there is no source
        return any(re.search(rf"\bself\.{name}\b|[\"']{name}[\"']", inspect.getsource(c)) for c in bases)
    return False


def _members(found: Any) -> dict[str, Any]:
    """Return the fields, columns or members of something."""
    if hasattr(found, "DESCRIPTOR"):
        return dict(found.DESCRIPTOR.fields_by_name)
    if hasattr(found, "__table__"):
        return dict(found.__table__.columns)
    if isinstance(found, enum.EnumType):
        members: list[enum.Enum] = list(found)
        return {member.name: member.value for member in members}
    return {**getattr(found, "__annotations__", {}), **vars(found)}


def _refusal(found: Any, need: str) -> str:
    """Return why something does not take the arguments, or a table the columns, "" if it does."""
    by_place, _, by_name = ([*filter(None, part.split(", "))] for part in need.partition("*"))
    if hasattr(found, "__table__"):
        columns = found.__table__.columns
        free = {c.name for c in columns if c.nullable or c.server_default is not None}
        wrong = ({*by_place} - {*columns.keys()}) | ({*columns.keys()} - {*by_place} - free)
        return f"another table: {' '.join(sorted(wrong))}" if wrong else ""
    try:
        signature = inspect.signature(found)
        bound = signature.bind(*by_place, **dict.fromkeys(by_name)).arguments
    except TypeError as err:
        return str(err)
    return "" if all(bound.get(name) == name for name in by_place) else ", ".join(signature.parameters)


ERRORS = Use(
    "sending an order again that was lost, and no other; calling a SuperLink in trouble again.",
    "a lost order is not sent again, or a run goes on without its SuperLink.",
    """
        flwr.supercore.run
            RunNotRunningException
    """,
)

NODES = Use(
    "seeing that a node left and came back, from when it was registered and activated.",
    "an order to a node that was restarted is not sent again.",
    """
        flwr.proto.node_pb2
            NodeInfo: node_id name registered_at last_activated_at
    """,
)

SERVICES = Use(
    "the protobufs that go between machines, by the name of their call.",
    "nothing can be sent to a SuperLink or a node.",
    """
        flwr.proto.control_pb2
            DESCRIPTOR
        flwr.proto.fleet_pb2
            DESCRIPTOR
        flwr.proto.runtime_pb2
            DESCRIPTOR
    """,
)

FETCHING = Use(
    "limits on bytes and time while a reply is fetched, several parts per call; Flower has none.",
    "a hostile reply is measured only once it is complete: it may hold up the round for two hours.",
    """
        flwr.superlink.grid.http_grid
            pull_objects(object_ids, pull_object_fn, *, max_time, max_tries_per_object,
                initial_backoff, backoff_cap)
    """,
)

ARRAYS = Use(
    "a limit on the bytes of a reply while its arrays are made; Flower has none.",
    "a hostile reply of a few megabytes fills the memory of a run.",
    """
        flwr.app.Array
            inflate(object_content, children)
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

HELD = Use(
    "asking our link, through the grid's own client, which replies are there.",
    "a deployed run polls for replies: rounds of small models take twice as long.",
    """
        flwr.superlink.grid.http_grid.HttpGrid
            _runtime_client
        flwr.supercore.runtime.RuntimeHttpClient
            _unary_unary(self, *, path, rpc_method, request, response_type)
    """,
)

PACKED = Use(
    "sending a node several small objects of a message per call.",
    "each small object of a message is a call: a round costs link and ServerApp 1.3 times the CPU.",
    """
        flwr.superlink.grid.http_grid
            push_objects(objects, push_object_fn, *, object_ids_to_push)
    """,
)

SIMULATION = Use(
    "messages of a simulation: who sends them, and their ids.",
    "`bouquet run` fails.",
    """
        flwr.supercore.task_identity
            TaskIdentity
        flwr.supercore.task_identity.TaskIdentity
            run_id
            task_id
            node_id
        flwr.app.metadata.Metadata
            _message_id
    """,
)

USES = (ERRORS, NODES, SERVICES, FETCHING, ARRAYS, HELD, PACKED, APP, SIMULATION)
DEGRADES = (FETCHING, ARRAYS, HELD, PACKED)  # where one does not fit, a run does as Flower does
