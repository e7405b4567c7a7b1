"""A case of the table, and the rig that all cases share."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_app.deploy.kits.provision import provision
from tests.faults.federation import Federation
from tests.faults.network import Network, network, possible
from tests.faults.runs import Run, reference

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 30  # rounds of the undisturbed run
ENDLESS = 10_000  # rounds of a run that is stopped when it has shown what it should
TESTS_S = 600.0


class NotCoveredError(Exception):
    """A case that this machine cannot do, and why."""


@dataclass(frozen=True)
class Case:
    """One fault or attack.

    Attributes:
        id: R and a number of a fault, S and a number of an attack; numbers have no gap.
        title: The fault.
        guarantee: What must hold.
        how: What is done, one line.
        run: Does it; returns what was seen, or raises AssertionError.
        tests: Tests of the suite that belong to it, run by it too.
    """

    id: str
    title: str
    guarantee: str
    how: str
    run: Callable[[Rig], str]
    tests: tuple[str, ...] = ()


CASES: dict[str, Case] = {}


def case(
    id: str, title: str, guarantee: str, how: str, tests: tuple[str, ...] = ()
) -> Callable[[Callable[[Rig], str]], Callable[[Rig], str]]:
    """Register a function as a case."""

    def register(run: Callable[[Rig], str]) -> Callable[[Rig], str]:
        CASES[id] = Case(id, title, guarantee, how, run, tests)
        return run

    return register


class Rig:
    """One federation for all cases, made when the first one needs it; a context manager.

    Args:
        folder: For all of it.
        repeat: How often a case with a random moment is done.
        seed: Of the random moments.
    """

    def __init__(self, folder: Path, repeat: int = 1, seed: int = 1) -> None:
        self.folder, self.repeat = folder, repeat
        self.random = random.Random(seed)
        self.network: Network | None = None
        self.facts: dict[str, Any] = {}  # what one case found and another tells of
        self._stack = ExitStack()
        self._fed: Federation | None = None
        self._reference: list[str] = []
        self._runs = self._starts = 0

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def fed(self) -> Federation:
        """Return the federation, all of it up and idle."""
        if self._fed is None:
            self._starts += 1
            folder = self.folder / f"federation-{self._starts}"
            with ExitStack() as made:  # of a start that fails nothing is left: the next case tries again
                net = None if possible() else made.enter_context(network())
                fed = Federation(folder, net)
                made.callback(fed.stop)
                fed.start()
                self._reference = reference(folder / "undisturbed", fed.data, LONGEST)
                self._stack.enter_context(made.pop_all())
            self._fed, self.network = fed, net
        else:
            self._fed.ready()
        return self._fed

    def net(self) -> Network:
        """Return the network namespaces.

        Raises:
            NotCoveredError: There are none on this machine.
        """
        self.fed()
        if self.network is None:
            raise NotCoveredError(possible())
        return self.network

    def submit(self, rounds: int, **keys: Any) -> Run:
        """Submit a run under a name of its own."""
        return self.submit_to(self.fed(), rounds, **keys)

    def submit_to(self, fed: Federation, rounds: int, **keys: Any) -> Run:
        """Submit a run to the federation as it is, whoever is there."""
        self._runs += 1
        return fed.submit(f"run-{self._runs}", rounds, **keys)

    def pace(self) -> tuple[float, float]:
        """Return seconds of a round, and of a run of ten, as undisturbed as this machine is."""
        if "pace" not in self.facts:
            fed = self.fed()
            run = fed.submit("undisturbed", 10)
            began = time.monotonic()
            run.wait_end()
            whole = time.monotonic() - began
            self.same(run)
            self.facts["pace"] = statistics.median(row["seconds"]["total"] for row in run.rows()[1:]), whole
        pace: tuple[float, float] = self.facts["pace"]
        return pace

    def same(self, run: Run) -> str:
        """Hold that every round of a run left the model of the undisturbed run; return a few words."""
        hashes = run.hashes()
        assert len(hashes) == run.rounds + 1, f"{run.name}: {len(hashes) - 1} of {run.rounds} rounds"
        odd = [i for i, (got, want) in enumerate(zip(hashes, self._reference, strict=False)) if got != want]
        assert not odd, f"{run.name}: other models than undisturbed after rounds {odd}: {run.quarantined()}"
        return f"all {run.rounds} models as undisturbed"

    def enrol(self, name: str) -> Path:
        """Provision one node more, and wait until the link lets it in; return its kit."""
        fed = self.fed()
        provision(fed.kits, nodes=[name])
        fed.until(lambda: any(n["name"] == name for n in fed.status()["nodes"]), 60, f"{name} registered")
        return fed.kits / name

    def once(self, name: str, find: Callable[[], Any]) -> Any:
        """Return what `find` returned, or raise what it raised, the first time that it was asked for."""
        if name not in self.facts:
            try:
                self.facts[name] = find()
            except AssertionError as err:
                self.facts[name] = err
        if isinstance(self.facts[name], AssertionError):
            raise self.facts[name]
        return self.facts[name]

    def member(self) -> dict[str, str]:
        """Return how calls with a good key end that no node makes; see `attackers.member`."""

        def find() -> Any:
            kit, fed = self.enrol("member"), self.fed()
            return fed.attack("member", fed.address, str(kit / "ca.crt"), str(kit / "node.key"))

        found: dict[str, str] = self.once("member", find)
        return found

    def strangers(self) -> dict[str, Any]:
        """Return how calls with keys that nobody registered end; see `attackers.strangers`."""

        def find() -> Any:
            fed = self.fed()
            return fed.attack("strangers", fed.address, str(fed.kits / "link" / "ca.crt"), "100")

        found: dict[str, Any] = self.once("strangers", find)
        return found


def run_tests(tests: tuple[str, ...]) -> str:
    """Run tests of the suite; return how many passed.

    Raises:
        AssertionError: One failed.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TESTS_S, check=False)
    failed = "; ".join(line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))
    assert done.returncode == 0, f"{failed[:500]}\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
    return next(line for line in reversed(done.stdout.splitlines()) if "passed" in line).strip("= ")
