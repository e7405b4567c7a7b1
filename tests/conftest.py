"""Fixtures of the whole suite: caches and state of every test lie in a folder of their own."""

from __future__ import annotations

import gc
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from task.errors import BouquetError

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Threads of OpenMP sleep while they wait, here and in all processes that tests start: there are more of them
# than cores, and those that spin instead take many times the time of what they wait for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Tests fork this process, whichever of them have used gRPC in it before. gRPC's own preparation of a fork
# ends a child with an abort if the child has closed all files and forks again. gRPC reads the variable when
# it is imported; processes that tests start have its default.
with pytest.MonkeyPatch.context() as _patch:
    _patch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    import grpc  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]

gc.disable()  # while modules are imported and tests collected, which takes twice as long with it


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Leave out of later collections what lives as long as the process: modules and the tests themselves."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000)  # instead of 700: few tests make circles


def pytest_sessionstart() -> None:
    """End at once, with the line to add, where an algorithm lacks a half: else every test of it fails."""
    try:
        import strategies  # noqa: F401
    except BouquetError as err:
        pytest.exit(str(err), returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.hookimpl(trylast=True)  # after those that are not asked for were taken out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let workers begin with what starts processes and waits for them, then take the files of most cases.

    They take files in this order: what is left for the end is short, and no core waits for the last test.
    """
    if hasattr(config, "workerinput"):
        sizes = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.get_closest_marker("system") is None, -sizes[item.path]))


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of decoded data for the session: the digits are decoded once."""
    return tmp_path_factory.mktemp("cache")


_NUMBERS = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """An empty folder, as of pytest, which lists the folders of all earlier tests to find a number."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_NUMBERS)}"
    folder.mkdir(mode=0o700)
    return folder


class Everything(set[str]):
    """References that a test's own code names: all of them. Those of `task.trust` put it back."""

    def __contains__(self, reference: object) -> bool:
        return True


@pytest.fixture(autouse=True)
def _a_test_is_its_user() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # its own, which no test undoes
        patch.setattr("task.trust._named", Everything())
        patch.setattr("task.trust._allowed", set())
        yield


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(shared_cache))
    monkeypatch.setenv("FLWR_HOME", str(shared_cache.parent / f"flwr-{next(_NUMBERS)}"))  # made when needed


@pytest.fixture
def owners(tmp_path: Path) -> Path:
    """A file of five owners with rows of their own, in the test's folder."""
    from tests.support.federation import write_owners

    write_owners(tmp_path / "owners.npz")
    return tmp_path / "owners.npz"


def real_data() -> Path | None:
    """Return the folder with real data sets, if there is one on this machine."""
    for place in (os.environ.get("BOUQUET_DATA"), str(ROOT.parent / "shared" / "data")):
        if place and (Path(place) / "MNIST" / "raw").is_dir():
            return Path(place)
    return None


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with real data; the test is left out, with the reason, where there is none."""
    folder = real_data()
    if folder is None:
        pytest.skip("no real data: set BOUQUET_DATA to a folder with MNIST/raw")
    monkeypatch.setenv("BOUQUET_DATA", str(folder))
    return folder
