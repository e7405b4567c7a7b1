"""A *next* Flower of our making: a copy of the installed one, changed as a release may change it.

By a seed it renames private functions, and those that our patches replace; adds parameters with a default to
functions that we call; adds columns to tables, fields to messages and members to enumerations. All of the
copy is changed alike, so that Flower itself works as before. What guards and what we cannot do without is not
renamed: on such a release Bouquet ends with an error.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import pkgutil
import random
import re
import shutil
import sys
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import flwr
import flwr.proto
from alembic.script import ScriptDirectory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from server_app.deploy.flower import names as deployed
from server_app.deploy.flower import superlink
from task.flower import names as anywhere
from task.flower.names import NEWEST_TESTED, Use, find

FLWR = Path(flwr.__file__).parent
SITE = FLWR.parent
VERSION = f"{NEWEST_TESTED[0]}.{NEWEST_TESTED[1] + 2}.0"
SEEDS = (1, 2, 3)
RENAMED = 0.5  # of the private functions, and of those that our patches replace; with seed 1 all of these
PATCHES = {use for patch in superlink.PATCHES for use in patch.needs} | {*superlink.CALLS, *superlink.OTHERS}
USES = (*anywhere.USES, *deployed.USES)
# Other modules of ours, and Flower's users, know these by their names.
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.common", "flwr.serverapp", "flwr.serverapp.strategy")
HEAD = "0123456789ab"
MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "{head}"
down_revision = {before!r}
branch_labels = depends_on = None


def upgrade():
    for table in {tables!r}:
        op.add_column(table, sa.Column("next_note", sa.String(), nullable=True))
        op.add_column(table, sa.Column("next_count", sa.Integer(), nullable=False, server_default="0"))


def downgrade():
    for table in {tables!r}:
        op.drop_column(table, "next_note")
        op.drop_column(table, "next_count")
"""
COLUMNS = """
next_note = mapped_column(__import__("sqlalchemy").String, nullable=True)
next_count = mapped_column(__import__("sqlalchemy").Integer, nullable=False, server_default="0")
"""


@dataclass
class Changes:
    """What a copy is changed in.

    Attributes:
        renamed: Words of Flower's source, and what takes their place.
        longer: Functions, by module and qualified name, that get a parameter with a default.
        wider: Classes likewise: tables that get columns, and enumerations that get a member.
        messages: Protobuf messages, by name, that get a field.
    """

    renamed: dict[str, str] = field(default_factory=dict)
    longer: set[tuple[str, str]] = field(default_factory=set)
    wider: dict[tuple[str, str], str] = field(default_factory=dict)
    messages: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)


def environment(folder: Path, seed: int) -> Path:
    """Return the Python of an environment that has a next Flower, and all else from this one."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "rest.pth").write_text(f"import site; site.addsitedir({str(SITE)!r})\n")
    copy(site, changes(seed))
    return folder / "bin" / "python"


def copy(site: Path, change: Changes) -> None:
    """Write the changed copy into a folder that is on the path of modules."""
    shutil.copytree(FLWR, site / "flwr", ignore=shutil.ignore_patterns("__pycache__"))
    metadata = distribution("flwr").read_text("METADATA")
    assert metadata
    info = site / f"flwr-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(re.sub(r"(?m)^Version: .*", f"Version: {VERSION}", metadata, count=1))
    words = re.compile(rf"\b({'|'.join(change.renamed)})\b")
    places = {module for module, _ in (*change.longer, *change.wider)}
    for path in (site / "flwr").rglob("*.py"):
        module = ".".join(path.relative_to(site).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text("utf-8")
        if module in places or path.stem.endswith("_pb2") or words.search(text):
            tree = _Editor(module, change).visit(ast.parse(text))
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    if change.tables:
        versions = site / "flwr" / "supercore" / "state" / "alembic" / "versions"
        text = MIGRATION.format(head=HEAD, before=_head(), tables=sorted(change.tables))
        (versions / "rev_9999_01_01_next.py").write_text(text)


def changes(seed: int) -> Changes:
    """Return what the copy of a seed is changed in."""
    draw = random.Random(seed)
    change = Changes()
    patched, private = renamable()
    for word in patched:
        if seed == SEEDS[0] or draw.random() < RENAMED:
            change.renamed[word] = f"{word}_v{seed}"
    for word in private:
        if draw.random() < RENAMED:
            change.renamed[word] = f"{word}_v{seed}"
    for path, need in _needs(USES):
        found = inspect.unwrap(find(path)) if callable(find(path)) else find(path)
        if need.startswith("(") and inspect.isroutine(found):
            change.longer.add((found.__module__, found.__qualname__))
        elif hasattr(found, "__table__"):
            change.wider[found.__module__, found.__qualname__] = COLUMNS
            change.tables.add(found.__tablename__)
        elif hasattr(found, "DESCRIPTOR") and inspect.isclass(found):
            change.messages.add(found.DESCRIPTOR.name)
        elif need.startswith(":") and inspect.isclass(found) and (values := list(_members(found))):
            new = max(values) + 1000 if isinstance(values[0], int) else "next"
            change.wider[found.__module__, found.__qualname__] = f"NEXT = {new!r}"
    return change


def renamable() -> tuple[list[str], list[str]]:
    """Return the functions that our patches replace or call, and Flower's other private ones.

    Without those whose word is also a name elsewhere: in Flower's public API, in a library, in a message.
    """
    needed = {path.rpartition(".")[2] for use in USES if use not in PATCHES for path in use.names}
    taken = needed | _public() | _foreign() | _fields()
    patched = {
        path.rpartition(".")[2]
        for path, need in _needs(PATCHES)
        if inspect.isroutine(find(path)) and find(path).__module__.startswith("flwr.")
    }
    private = {
        node.name
        for path in sorted(FLWR.rglob("*.py"))
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and re.match("_[^_]", node.name)
    }
    return sorted(word for word in patched - taken if "_" in word), sorted(private - taken - patched)


def _needs(uses: Iterable[Use]) -> Iterator[tuple[str, str]]:
    for use in sorted(uses, key=lambda use: use.why):
        for path, need in use.names.items():
            if '"' not in path and find(path) is not anywhere.MISSING:
                yield path, need.removeprefix("?").strip()


def _members(found: Any) -> Iterator[Any]:
    """Yield the values of an enumeration, or of a class of constants."""
    if isinstance(found, enum.EnumType):
        yield from (one.value for one in list[enum.Enum](found))
    else:
        yield from (v for k, v in vars(found).items() if k.isupper() and isinstance(v, int | str))


def _public() -> set[str]:
    modules = [importlib.import_module(name) for name in PUBLIC]
    found = [getattr(module, name) for module in modules for name in module.__all__]
    return {*(n for one in found for n in dir(one)), *(n for m in modules for n in m.__all__)}


def _foreign() -> set[str]:
    """Return the names that the modules of other packages have, and their classes, and those of modules."""
    importlib.import_module("flwr.superlink.main")
    words = {path.stem for path in (*FLWR.rglob("*.py"), *(p.parent for p in FLWR.rglob("__init__.py")))}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in ("flwr", "server_app", "task", "tests"):
            for key, value in list(getattr(module, "__dict__", {}).items()):
                words.add(key)
                if inspect.isclass(value) and not str(value.__module__).startswith("flwr"):
                    words |= vars(value).keys()
    return words


def _fields() -> set[str]:
    words = set[str]()
    for info in pkgutil.iter_modules(flwr.proto.__path__, "flwr.proto."):
        if info.name.endswith("_pb2"):
            for message in importlib.import_module(info.name).DESCRIPTOR.message_types_by_name.values():
                words |= {message.name, *message.fields_by_name}
    return words


def _head() -> str:
    """Return the newest revision of the database."""
    folder = FLWR / "supercore" / "state" / "alembic"
    head = ScriptDirectory(str(folder), version_locations=[str(folder / "versions")]).get_current_head()
    assert head
    return head


class _Editor(ast.NodeTransformer):
    """Applies changes to a module."""

    def __init__(self, module: str, change: Changes) -> None:
        self._module, self._change = module, change
        self._old = {new: old for old, new in change.renamed.items()}
        self._within: list[str] = []

    def _new(self, word: str | None) -> Any:
        return self._change.renamed.get(word, word) if word else word

    def visit(self, node: ast.AST) -> Any:
        """Rename the words of a node, and change what is in it."""
        for name in ("id", "attr", "name", "arg", "asname"):
            if isinstance(getattr(node, name, None), str):
                setattr(node, name, self._new(getattr(node, name)))
        if isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [self._new(name) for name in node.names]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = self._new(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            self._add_fields(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return self.generic_visit(node)
        self._within.append(self._old.get(node.name, node.name))
        place = self._module, ".".join(self._within)
        if isinstance(node, ast.ClassDef) and place in self._change.wider:
            node.body += ast.parse(self._change.wider[place]).body
        if isinstance(node, ast.FunctionDef) and place in self._change.longer:
            node.args.kwonlyargs.append(ast.arg("next_option"))
            node.args.kw_defaults.append(ast.Constant(None))
        self.generic_visit(node)
        self._within.pop()
        return node

    def _add_fields(self, node: ast.Constant) -> None:
        """Add fields to the messages that a generated module describes."""
        if not self._module.startswith("flwr.proto.") or len(node.value) < 20:
            return
        described = FileDescriptorProto.FromString(node.value)
        for message in described.message_type:
            if message.name in self._change.messages:
                message.field.add(
                    name="next_field", number=1000, json_name="nextField",
                    type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL,
                )  # fmt: skip
        node.value = described.SerializeToString()
