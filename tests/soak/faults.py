"""The faults of a soak: each takes a federation, harms it, and returns how it is mended, if somebody must."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import psutil

from tests.faults.federation import FAR, Federation
from tests.faults.machine import Machine

Mend = Callable[[], object]


@dataclass(frozen=True)
class Harm:
    """A fault that was done.

    Attributes:
        mend: Ends it.
        after_s: When that is due; 0 = the wardens mend it by themselves.
    """

    mend: Mend = lambda: None
    after_s: float = 0.0


def _one_of(random: Random, machine: Machine, *roles: str) -> psutil.Process | None:
    found = [p for role in roles for p in machine.roles().get(role, [])]
    return random.choice(found) if found else None


def _killed(process: psutil.Process | None) -> Harm | None:
    if process is None:
        return None
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
        return Harm()
    return None


def _paused(process: psutil.Process | None, seconds: float) -> Harm | None:
    if process is None:
        return None

    def resume() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()

    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        return Harm(resume, seconds)
    return None


def node_killed(fed: Federation, random: Random) -> Harm | None:
    """Kill all of a node; its service manager starts it again after 2 s."""
    name = random.choice([n for n in fed.wards if fed.machines[n].running()] or [""])
    if not name:
        return None
    fed.machines[name].kill()
    return Harm(lambda: fed.start_node(name), 2.0)


def link_killed(fed: Federation, random: Random) -> Harm | None:
    """Kill all of the link; its service manager starts it again after 2 s."""
    if not fed.machines["link"].running():
        return None
    fed.machines["link"].kill()
    return Harm(fed.start_link, 2.0)


def task_killed(fed: Federation, random: Random) -> Harm | None:
    """Kill the process of a training."""
    busy = [n for n in fed.wards if fed.machines[n].roles().get("task")]
    return _killed(_one_of(random, fed.machines[random.choice(busy)], "task")) if busy else None


def node_process_killed(fed: Federation, random: Random) -> Harm | None:
    """Kill a node's SuperNode or its warm parent."""
    return _killed(_one_of(random, fed.machines[random.choice(fed.wards)], "supernode", "warm"))


def superlink_killed(fed: Federation, random: Random) -> Harm | None:
    """Kill the SuperLink."""
    return _killed(_one_of(random, fed.machines["link"], "superlink"))


def server_app_killed(fed: Federation, random: Random) -> Harm | None:
    """Kill the ServerApp."""
    return _killed(_one_of(random, fed.machines["link"], "task"))


def node_process_paused(fed: Federation, random: Random) -> Harm | None:
    """Stop a process of a node for some seconds."""
    machine = fed.machines[random.choice(fed.wards)]
    return _paused(_one_of(random, machine, "supernode", "warm", "task"), random.uniform(1, 5))


def superlink_paused(fed: Federation, random: Random) -> Harm | None:
    """Stop the SuperLink for some seconds."""
    return _paused(_one_of(random, fed.machines["link"], "superlink"), random.uniform(1, 4))


def network_cut(fed: Federation, random: Random) -> Harm | None:
    """Cut the node that has a network namespace of its own."""
    if fed.network is None or FAR not in fed.wards:
        return None
    cut = fed.network.cut()
    cut.__enter__()
    return Harm(lambda: cut.__exit__(None, None, None), random.uniform(1, 6))


# With their weights: what is small happens more often.
FAULTS: dict[str, tuple[Callable[[Federation, Random], Harm | None], int]] = {
    "training killed": (task_killed, 4),
    "SuperNode or warm parent killed": (node_process_killed, 4),
    "node killed": (node_killed, 2),
    "ServerApp killed": (server_app_killed, 2),
    "SuperLink killed": (superlink_killed, 2),
    "link killed": (link_killed, 1),
    "process of a node paused": (node_process_paused, 4),
    "SuperLink paused": (superlink_paused, 2),
    "network cut": (network_cut, 2),
}
