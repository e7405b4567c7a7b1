"""Names of Flower that are not public: only the two rooms use them, each is listed, and each is as it was."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from flwr.common import log
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from server_app.deploy.calls.limits import Limits
from server_app.deploy.flower import names as deployed
from server_app.deploy.flower import superlink
from task.errors import PACKAGES, ConfigError
from task.flower import names as anywhere
from task.flower.names import changes, find, misfit, untested
from task.text import logger
from tests.compat.version import TESTS

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("task/flower", "server_app/deploy/flower")
USES = (*anywhere.USES, *deployed.USES)
LISTED = {path for use in USES for path in use.names}
NEEDS = {need for use in USES for need in use.names.values()}
PUBLIC = (
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.common",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
)
DOCUMENTED = {"FLWR_HOME", "FLWR_TELEMETRY_ENABLED"}
NAMED_TUPLES = {"_replace", "_asdict", "_fields"}
MODULE = re.compile(r"(?<![\w.\[])flwr(?:\.\w+)+")
UNKNOWN = "?."  # of an object of which the code does not say what it is


class Names(ast.NodeVisitor):
    """Collects the names of Flower in a file.

    `found` has dotted paths, ``?._name`` for a private attribute of an object that cannot be followed and is
    not the file's own, and ``FLWR_NAME`` for a variable of the environment.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.found: set[str] = set()
        self._bound: dict[str, str] = {}  # names of this file: what each was imported as
        self._own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        self._docs = {id(d.value) for n in ast.walk(tree) for d in _docstring(n)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._bound[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
                    self._add(alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    self._add(f"{node.module}.{alias.name}")
            elif isinstance(node, ast.Attribute) and _is_self(node.value) and isinstance(node.ctx, ast.Store):
                self._own.add(node.attr)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
                node.value, ast.Call | ast.Subscript
            ):
                named = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if len(named) == 1 and _is_module(named[0]) and isinstance(targets[0], ast.Name):
                    self._bound[targets[0].id] = str(named[0])
        self.visit(tree)

    def _add(self, path: str) -> None:
        if path.split(".")[0] == "flwr" or path.startswith((UNKNOWN, "FLWR_")):
            self.found.add(path)

    def _follow(self, node: ast.expr) -> str:
        """Return the dotted path of an expression, "" if it cannot be known."""
        if isinstance(node, ast.Name):
            return self._bound.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := self._follow(node.value)):
            return f"{owner}.{node.attr}"
        return ""

    def _attribute(self, owner: ast.expr, name: str) -> None:
        if path := self._follow(owner):
            self._add(f"{path}.{name}")
        elif re.match("_[^_]", name) and not _is_self(owner) and name not in self._own | NAMED_TUPLES:
            self._add(UNKNOWN + name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._attribute(node.value, node.attr)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        owner, name = _namespace(node.value), node.slice
        if owner is not None and isinstance(name, ast.Constant):
            self._attribute(owner, str(name.value))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Name) and function.id in ("getattr", "setattr", "hasattr", "delattr"):
            if isinstance(node.args[1], ast.Constant):
                self._attribute(node.args[0], str(node.args[1].value))
        elif isinstance(function, ast.Attribute) and function.attr == "update":
            owner = _namespace(function.value)
            for keyword in node.keywords if owner is not None else ():
                self._attribute(owner, str(keyword.arg))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and id(node) not in self._docs:
            for path in MODULE.findall(node.value):
                self._add(path)
            if re.fullmatch(r"FLWR_\w+", node.value) and node.value not in DOCUMENTED:
                self._add(node.value)


def _docstring(node: ast.AST) -> list[ast.Expr]:
    has_one = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return [n for n in node.body[:1] if isinstance(n, ast.Expr)] if has_one else []


def _namespace(node: ast.expr) -> ast.expr | None:
    """Return x of ``vars(x)`` and ``x.__dict__``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars":
        return node.args[0]
    return node.value if isinstance(node, ast.Attribute) and node.attr == "__dict__" else None


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_module(value: object) -> bool:
    return isinstance(value, str) and MODULE.fullmatch(value) is not None


def found_in(path: Path) -> set[str]:
    return Names(ast.parse(path.read_text(encoding="utf-8"))).found


@cache
def public_names() -> frozenset[str]:
    return frozenset(f"{m}.{n}" for m in PUBLIC for n in importlib.import_module(m).__all__) | {
        *PUBLIC,
        "flwr",
    }


def is_public(path: str) -> bool:
    """Return whether Flower documents a name, or what it is an attribute of."""
    parts = path.split(".")
    if re.fullmatch(r"_repr_\w+_", parts[-1]):
        return True  # of IPython's protocol for what a notebook shows
    if path.startswith((UNKNOWN, "FLWR_")) or any(re.match("_[^_]", part) for part in parts):
        return False
    if path in PUBLIC:
        return True
    prefixes = {".".join(parts[:end]) for end in range(2, len(parts) + 1)} - {*PUBLIC}
    return path == "flwr" or bool(prefixes & public_names())


def is_listed(path: str) -> bool:
    """Return whether the manifest has a name, or the class of which it is a public attribute."""
    name = path.rpartition(".")[2]
    if path.startswith(UNKNOWN):
        return any(listed.endswith(f".{name}") for listed in LISTED)
    if path.startswith("FLWR_"):
        return any(need.endswith(f" = {path!r}") for need in NEEDS)
    if path in LISTED or any(n.startswith(f"{path}.") or f'"/{path}/' in n for n in LISTED):
        return True
    parts = path.split(".")
    owners = [".".join(parts[:end]) for end in range(2, len(parts))]
    classes = [owner for owner in owners if owner in LISTED and not isinstance(find(owner), ModuleType)]
    return any(not re.search(r"\._[^_]", path.removeprefix(owner)) for owner in classes)


def outside(root: Path) -> dict[str, set[str]]:
    """Return the private names by file, of the files outside the rooms."""
    files = {
        p.relative_to(root).as_posix(): p for package in PACKAGES for p in (root / package).rglob("*.py")
    }
    private = {
        name: {path for path in found_in(file) if not is_public(path)}
        for name, file in files.items()
        if not name.startswith(ROOMS)
    }
    return {name: paths for name, paths in private.items() if paths}


def unlisted(root: Path) -> dict[str, set[str]]:
    """Return the names by file that the rooms use and the manifest lacks."""
    missing = {
        file.relative_to(root).as_posix(): {
            path for path in found_in(file) if not is_public(path) and not is_listed(path)
        }
        for room in ROOMS
        for file in (root / room).rglob("*.py")
    }
    return {name: paths for name, paths in missing.items() if paths}


def test_flower_has_every_name_as_it_was() -> None:
    # In a process of its own: other tests replace functions of Flower in this one.
    code = "from tests.test_flower_names import USES, changes; print(*changes(*USES), sep='\\n')"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert not shown.stdout.strip()


def test_only_the_two_rooms_use_names_that_are_not_public() -> None:
    assert not outside(ROOT)


def test_the_manifest_has_every_name_that_the_rooms_use_and_no_other() -> None:
    assert not unlisted(ROOT)
    files = {p for package in PACKAGES for p in (ROOT / package).rglob("*.py") if p.stem != "names"}
    words = set(re.findall(r"\w+", " ".join(p.read_text("utf-8") for p in files)))
    listed = ((path, value) for use in USES for path, value in use.names.items() if '"' not in path)
    unused = {
        path
        for path, value in listed
        # A message that is only received, and a constant that is spelled out, appear by what is in them, and
        # a table by its name.
        if not {
            path.rpartition(".")[2],
            getattr(find(path), "__tablename__", ""),
            *re.findall(r"\w+", value if "(" not in value else ""),
        }
        & words
    }
    assert not unused


VIOLATIONS = {
    "import": "from flwr.common.constant import ErrorCode",
    "module": "import flwr.supercore.run",
    "private of a public module": "from flwr.serverapp import _private",
    "later": "def f():\n    from flwr.superlink.grid import InMemoryGrid\n    return InMemoryGrid",
    "by a string": "import importlib\ngrid = importlib.import_module('flwr.superlink.grid.http_grid')",
    "in a call": "PATH = '/flwr.proto.Runtime/AcquireTask'",
    "attribute of a class": "from flwr.app import Message\nMessage._private()",
    "attribute of an object": "def f(reply):\n    return reply.metadata._message_id",
    "in __dict__": "def f(reply):\n    reply.metadata.__dict__['_message_id'] = ''",
    "in vars": "def f(reply):\n    vars(reply.metadata).update(_message_id='')",
    "getattr": "def f(reply):\n    return getattr(reply.metadata, '_message_id')",
    "environment": "ENV = {'FLWR_INTERNAL_GRPC_FLEET_API': '1'}",
}
PUBLIC_USES = """
'''The docstring may name flwr.superlink.grid.'''
import logging
from flwr.app import Array, Message
from flwr.serverapp.strategy import Result, Strategy
from flwr_datasets.partitioner import IidPartitioner
logger = logging.getLogger("flwr")
HOME = "FLWR_HOME"
KEYS = "see [tool.flwr.app.config]"
class Ours:
    def __init__(self, other):
        self._mine = other._mine
    def copy(self, details):
        return details._replace(a=Array(1)), Message.metadata, Result().metrics
"""


@pytest.mark.parametrize("code", VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_private_name_outside_the_rooms_is_found(code: str, tmp_path: Path) -> None:
    file = tmp_path / "strategies" / "engine" / "planted.py"
    file.parent.mkdir(parents=True)
    file.write_text(code)
    assert outside(tmp_path).keys() == {"strategies/engine/planted.py"}
    file.write_text(PUBLIC_USES)
    assert not outside(tmp_path)


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_in_a_room_that_the_manifest_lacks_is_found(room: str, tmp_path: Path) -> None:
    file = tmp_path / room / "planted.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from flwr.common.constant import FLWR_INTERNAL_GRPC_FLEET_API, Status\n"
        "from flwr.cli import build\n"
        "def f(state):\n"
        "    state._cleanup_push_session(FLWR_INTERNAL_GRPC_FLEET_API)\n"
        "    state._other()\n"
        "    return build.build_fab_from_files, build._run, vars(build)['Thread']\n"
    )
    build = "flwr.cli.build"
    missing = {"flwr.common.constant.Status", "?._other", f"{build}._run", f"{build}.Thread"}
    assert unlisted(tmp_path) == {f"{room}/planted.py": missing}


FLOWER = """
import enum

class Color(enum.IntEnum):
    RED = 1
    BLUE = 2

class Codes:
    LOST = 7

class Thing:
    given: int

    def __init__(self):
        self._made = 1

    @property
    def held(self):
        raise RuntimeError

def call(a, b, *, c=0, d=0): ...
def more(a, b, new=None, *, c=0): ...
def asks(a, b, new, *, c=0): ...
def swapped(b, a, *, c=0): ...
LIMIT = 'x'
"""
FITS = {
    "call": "(a, b, *, c)", "more": "(a, b, *, c)", "Color": ": RED=1", "Codes": ": LOST=7",
    "Thing": ": given", "Thing._made": "", "Thing.held": "", "LIMIT": " = 'x'", "gone": "?",
    '"def call("': "",
}  # fmt: skip
MISFITS = {
    "asks": ("(a, b, *, c)", "missing a required argument: 'new'"),
    "swapped": ("(a, b, *, c)", "b, a, c"),
    "call": ("(a, b, *, e)", "got an unexpected keyword argument 'e'"),
    "more": ("(a)", "missing a required argument: 'b'"),
    "Color": (": RED=2 BLUE GREEN", "none, or another value, of RED GREEN"),
    "Codes": (": LOST=8", "none, or another value, of LOST"),
    "Thing._lost": ("", "none"),
    "LIMIT": (" = 'y'", "'x'"),
    "gone": ("", "none"),
    '"def gone("': ("", "none"),
}


@pytest.fixture
def flwr_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with FLOWER; its classes count as Flower's."""
    (tmp_path / "flwr_like.py").write_text(FLOWER)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("flwr_like")
    monkeypatch.setattr(module.Thing, "__module__", "flwr.thing")
    monkeypatch.setattr(inspect, "getsource", lambda _: FLOWER)
    yield "flwr_like"
    del sys.modules["flwr_like"]


@pytest.mark.parametrize(("name", "need"), FITS.items(), ids=FITS)
def test_a_name_fits_if_what_we_need_of_it_is_there_whatever_else_is(
    flwr_like: str, name: str, need: str
) -> None:
    assert misfit(f"{flwr_like}.{name}", need) == ""


@pytest.mark.parametrize(("name", "need", "got"), [(n, *v) for n, v in MISFITS.items()], ids=MISFITS)
def test_a_name_does_not_fit_if_something_that_we_need_is_not_there(
    flwr_like: str, name: str, need: str, got: str
) -> None:
    assert misfit(f"{flwr_like}.{name}", need) == got


def test_a_row_that_a_table_would_not_take_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base(DeclarativeBase):
        pass

    class Row(Base):
        __tablename__ = "rows"
        key: Mapped[str] = mapped_column(primary_key=True)
        note: Mapped[str | None]
        count: Mapped[int] = mapped_column(server_default="0")

    monkeypatch.setattr("json.Row", Row, raising=False)
    assert misfit("json.Row", "(key)") == misfit("json.Row", "(key, note)") == ""
    assert misfit("json.Row", ": key count") == ""
    assert misfit("json.Row", "(note)") == "another table: key"
    assert misfit("json.Row", "(key, other)") == "another table: other"
    assert misfit("json.Row", ": key other") == "none, or another value, of other"


def test_a_name_that_does_not_fit_is_named_with_why_and_what_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_fab_from_files(folder: object) -> None: ...

    assert not changes(anywhere.APP)
    monkeypatch.setattr("flwr.cli.build.build_fab_from_files", build_fab_from_files)
    assert changes(anywhere.APP) == [
        "flwr.cli.build.build_fab_from_files: expected (files); got folder. Used for: bundling the app as "
        "`flwr build` does. Without it: `bouquet run --link` fails."
    ]
    monkeypatch.delattr("flwr.cli.build.build_fab_from_files")
    assert "; got none. " in changes(anywhere.APP)[0]


def test_a_version_of_flower_above_the_newest_tested_is_warned_of() -> None:
    major, minor = anywhere.NEWEST_TESTED
    assert not any(map(untested, (f"{major}.{minor}.9", f"{major}.{minor - 1}.0")))
    for newer in (f"{major}.{minor + 1}.0", f"{major}.{minor + 1}.0rc1", f"{major + 1}.0.0"):
        assert f'"flwr[simulation]=={major}.{minor}.*"' in untested(newer)


def test_our_lines_appear_in_flowers_own_log() -> None:
    assert log.__self__ is logger  # type: ignore[attr-defined]


def test_a_superlink_is_not_started_on_a_flower_that_lacks_what_guards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(superlink.stock.SuperLinkLifespan, "shutdown")
    with pytest.raises(ConfigError, match=r"SuperLinkLifespan.shutdown: expected \(self\); got none"):
        superlink.patch(Limits(1, 1))


@pytest.mark.parametrize("test", TESTS)
def test_what_is_tested_on_every_flower_is_there(test: str) -> None:
    assert (ROOT / test).is_file()
