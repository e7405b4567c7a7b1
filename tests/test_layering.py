"""Which module may import which, between packages and between rooms (folders), and how many."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from client_app.stages.node_stage import NodeStage
from client_app.stages.stage import Stage
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.stages import STAGES
from task.features import FEATURES, halves

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bouquet", "task", "strategies", "client_app", "server_app")
MAY_IMPORT = {
    "task": {"task"},
    "strategies": {"strategies", "task"},
    "client_app": {"client_app", "task"},
    "server_app": {"server_app", "strategies", "task"},
    "bouquet": set(PACKAGES),
}
EXCEPTIONS = {
    # These start the client's half; the rest of the server does not know it.
    ("server_app/engines/simulate.py", "client_app"),
    ("server_app/deploy/node/run_node.py", "client_app"),
    # What a client's own model is, only its half knows.
    ("server_app/takeout/clients.py", "client_app"),
}
MOST_IMPORTS = 20  # of our own modules, by one
MODULE = re.compile(r"(?:bouquet|task|strategies|client_app|server_app)(?:\.\w+)+")


def modules() -> list[Path]:
    return sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path): path for path in modules()}


class Named(NamedTuple):
    """A module that a file imports, or names in a string, as ``import_module`` and Flower take it."""

    name: str
    string: bool
    typing: bool  # for type checkers only
    inside: bool  # in a function


class Contents(NamedTuple):
    """What tests here want of a file."""

    named: frozenset[Named]
    classes: tuple[str, ...]  # wherever they are
    texts: frozenset[str]  # all strings


@cache
def contents(path: Path) -> Contents:
    """Return the contents of a file, which is read once for all tests."""
    found, left = set[Named](), [(ast.parse(path.read_text(encoding="utf-8")), False, False)]
    classes, texts = list[str](), set[str]()
    while left:
        node, typing, inside = left.pop()
        if isinstance(node, ast.ClassDef):
            classes.append(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        if isinstance(node, ast.Import):
            found |= {Named(alias.name, False, typing, inside) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            one = {name if name in NAMES else node.module for name in full}
            found |= {Named(name, False, typing, inside) for name in one}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if MODULE.fullmatch(name) and name in NAMES:
                found.add(Named(name, True, typing, inside))
        typing |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        inside |= isinstance(node, ast.FunctionDef)
        left += [(child, typing, inside) for child in ast.iter_child_nodes(node)]
    return Contents(frozenset(found), tuple(classes), frozenset(texts))


def imported(path: Path, *, typing: bool = True, strings: bool = True, inside: bool = True) -> set[str]:
    """Return the modules that a file names.

    Args:
        path: The file.
        typing: Whether imports for type checkers count.
        strings: Whether names in strings count.
        inside: Whether those inside functions count.
    """
    return {
        one.name
        for one in contents(path).named
        if (typing or not one.typing) and (strings or not one.string) and (inside or not one.inside)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        relative = path.relative_to(ROOT).as_posix()
        tops = {name.split(".")[0] for name in imported(path)} & {*PACKAGES, "tests"}
        wrong = {t for t in tops - MAY_IMPORT[package] if (relative, t) not in EXCEPTIONS}
        assert not wrong, f"{relative} must not import {sorted(wrong)}"


@pytest.mark.parametrize(("relative", "package"), sorted(EXCEPTIONS))
def test_an_exception_is_needed(relative: str, package: str) -> None:
    assert package in {name.split(".")[0] for name in imported(ROOT / relative)}


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {
        name: {other for other in imported(path, typing=False) if other in NAMES and other != name}
        for name, path in NAMES.items()
    }
    # Named by those who start them in a process of its own.
    started = {"client_app.app", "server_app.app", "server_app.cli.main"}
    graph = {name: others - started for name, others in graph.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as err:
        pytest.fail(f"a circle: {' -> '.join(err.args[1])}")


def check_lacks(name: str, libraries: set[str], inside: bool) -> None:
    """Check that a module imports none of the libraries, nor does any module that it imports."""
    seen, left = set[str](), [name]
    while left:
        module = left.pop()
        if module in seen:
            continue
        seen.add(module)
        found = imported(NAMES[module], typing=False, strings=inside, inside=inside)
        assert not {f.split(".")[0] for f in found} & libraries, f"{name}, by way of {module}"
        left += [f for f in found if f in NAMES]


@pytest.mark.parametrize("name", sorted(n for n in NAMES if n.startswith("strategies.rules.")))
def test_a_rule_knows_neither_flower_nor_torch(name: str) -> None:
    check_lacks(name, {"flwr", "torch"}, inside=True)


@pytest.mark.parametrize(
    "name",
    [
        "server_app.cli.main",
        "server_app.deploy.link.follow",
        "server_app.deploy.link.remote",
        "server_app.deploy.link.run_link",
        "server_app.deploy.node.run_node",
        "server_app.engines.federation",
        "server_app.results.compare",
        "server_app.results.report",
    ],
)
def test_who_trains_nothing_starts_without_torch(name: str) -> None:
    """The import costs a process three seconds."""
    check_lacks(name, {"torch"}, inside=False)


def room_of(name: str) -> str:
    """Return the folder that a module lives in; those of ``server_app/deploy`` count by themselves."""
    parts = name.split(".")
    depth = 3 if parts[:2] == ["server_app", "deploy"] else 2
    inside = parts if NAMES[name].name == "__init__.py" else parts[:-1]
    return ".".join(inside[:depth])


def test_no_room_imports_itself_in_a_circle() -> None:
    """Counts imports for type checkers too: a reader has to follow them as well."""
    graph: dict[str, set[str]] = {}
    for name, path in NAMES.items():
        others = {o for o in imported(path, strings=False) if o in NAMES}
        rooms = {room_of(o) for o in others} - {room_of(name)}
        graph.setdefault(room_of(name), set()).update(rooms)
    assert not circles(graph)


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of rooms that reach each other."""
    reached = {room: _reached(room, graph) for room in graph}
    together = {frozenset(o for o in reached[room] if room in reached.get(o, set())) for room in graph}
    return {rooms for rooms in together if len(rooms) > 1}


def _reached(room: str, graph: dict[str, set[str]]) -> set[str]:
    seen, left = {room}, [room]
    while left:
        fresh = graph.get(left.pop(), set()) - seen
        seen |= fresh
        left += fresh
    return seen


TRUNK = (
    *(f"strategies.engine.{p.stem}" for p in sorted((ROOT / "strategies/engine").glob("*.py"))),
    "strategies.strategy",
    "client_app.app",
    "client_app.answer",
    "client_app.trial",
    "client_app.work",
    "client_app.stages.merge",
    "client_app.stages.node_stage",
    "client_app.stages.stage",
    "server_app.app",
    "server_app.engines.simulate",
    "server_app.run.recorder",
)
MATHEMATICS = ("adapters", "codecs", "encryption", "fairness", "privacy", "secagg")  # rooms of `task`
OF_FEATURES = {  # what run-config sections and keys of features are called in `Config`
    "codec",
    "contribution",
    "dp",
    "gradient_dissimilarity",
    "he",
    "fraction_heldout",
    "order_of_arrival",
    "secagg",
    "secagg_bits",
    "transcript",
}


@pytest.mark.parametrize("name", [name for name in TRUNK if name in NAMES])
def test_the_trunk_names_no_feature(name: str) -> None:
    """It runs the list of `task.features`: neither its imports nor its conditions say which there are."""
    rooms = ("strategies.stages", "client_app.stages", "server_app.run.logs")
    files = {f"{room}.{f.name}" for f in FEATURES for room in rooms}
    files |= {o for o in NAMES if o.startswith(tuple(f"task.{room}." for room in MATHEMATICS))}
    files |= {o for o in NAMES if imported(NAMES[o], strings=False) & files and o.startswith("task.wire.")}
    files |= {o for o in NAMES if o.startswith("strategies.channels.")}
    assert not imported(NAMES[name], strings=False) & files
    tree = ast.parse(NAMES[name].read_text(encoding="utf-8"))
    assert not {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} & OF_FEATURES


def test_each_half_of_a_feature_has_its_declaration() -> None:
    """In the file of the same name; the declarations without halves say which keys do not go together."""
    declared = {feature.name for feature in FEATURES}
    rooms = ("strategies.stages.", "server_app.run.logs.")
    assert {name.rpartition(".")[2] for name in NAMES if name.startswith(rooms)} <= declared
    nodes = {kind.name for kind in halves("client_app.stages") if issubclass(kind, NodeStage)} - {""}
    assert nodes <= declared
    assert {f"task.features.{name}" for name in declared} <= NAMES.keys()
    stages = {name for kind in halves("client_app.stages") if issubclass(kind, Stage) for name in kind.names}
    assert stages == {*STAGES, "groups", "norms"}


def test_no_module_imports_many_of_ours() -> None:
    """What imports much knows much: give the second thing that it does a module of its own."""
    counts = {name: len({o for o in imported(p, strings=False) if o in NAMES}) for name, p in NAMES.items()}
    assert not {name: count for name, count in counts.items() if count > MOST_IMPORTS}


def test_extras_are_imported_only_when_asked_for() -> None:
    """A module outside of them names one inside a function, or for type checkers."""
    for name, path in NAMES.items():
        if not name.startswith("server_app.extras"):
            tops = {o for o in imported(path, typing=False, strings=False, inside=False) if o in NAMES}
            assert not {o for o in tops if o.startswith("server_app.extras")}, name


def test_a_class_name_means_one_class() -> None:
    """Without underscores in front; the shells in `strategies` have the names of their rules."""
    places: dict[str, list[str]] = {}
    for path in modules():
        if path != ROOT / "strategies" / "__init__.py":
            for name in contents(path).classes:
                places.setdefault(name.lstrip("_"), []).append(name_of(path))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_flowers_bundle_would_not_drop_a_file() -> None:
    for path in modules():
        assert not path.name.startswith("test_")
        assert not path.name.endswith("_test.py")


def test_within_task_only_the_wire_and_the_flower_room_import_flower() -> None:
    for path in (ROOT / "task").rglob("*.py"):
        if path.parent.name not in ("wire", "flower"):
            assert not {n for n in imported(path) if n.split(".")[0] == "flwr"}, path


# Strings that equal an algorithm's name, and what they are.
NO_ALGORITHM = {
    ("bouquet/__init__.py", "statistics"): "the function that runs it",
    ("task/catalogue/user_algorithm.py", "fedavg"): "what a user's rule is that does not say its entry",
    ("task/config/knobs.py", "fedavg"): "the default of the key",
    ("task/datasets/facts.py", "median"): "a statistic",
    ("task/datasets/facts_in_words.py", "median"): "a statistic",
}


def test_only_catalogue_rules_and_solvers_name_algorithms() -> None:
    """What algorithms differ in is a field or property of their entries (`task.catalogue.entry`)."""
    entries = (p for p in (ROOT / "task/catalogue").glob("*.py") if "\nENTRIES = " in p.read_text("utf-8"))
    known = (
        *(p.relative_to(ROOT).as_posix() for p in entries),
        "task/catalogue/solvers.py",  # the solvers, which have the names of algorithms
        "strategies/rules/",
        "client_app/solvers/",
    )
    found = {
        (where, name)
        for path in modules()
        if not (where := path.relative_to(ROOT).as_posix()).startswith(known)
        for name in contents(path).texts & ALGORITHMS.keys()
    }
    assert found == NO_ALGORITHM.keys()
