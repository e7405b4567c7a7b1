"""The faults of a soak: each harms one machine of a federation, and says how it is repaired if somebody must.

Every machine, the link or a node, is as likely as any other to be harmed next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
        after_s: When that is due; 0 = the supervisors repair it by themselves.
    """

    mend: Mend = lambda: None
    after_s: float = 0.0


Fault = Callable[[Federation, Random, str], Harm | None]


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


def killed(fed: Federation, random: Random, name: str) -> Harm | None:
    """Kill all of a machine; its service manager starts it again after 2 s."""
    if not fed.machines[name].running():
        return None
    fed.machines[name].kill()
    return Harm((fed.start_link if name == "link" else partial(fed.start_node, name)), 2.0)


def process_killed(*roles: str) -> Fault:
    """Return the fault that kills a process of one of these roles."""
    return lambda fed, random, name: _killed(_one_of(random, fed.machines[name], *roles))


def process_paused(*roles: str) -> Fault:
    """Return the fault that stops a process of one of these roles for some seconds."""
    return lambda fed, random, name: _paused(
        _one_of(random, fed.machines[name], *roles), random.uniform(1, 5)
    )


def network_cut(fed: Federation, random: Random, name: str) -> Harm | None:
    """Cut the network of the node that has a namespace of its own."""
    if fed.network is None or name != FAR:
        return None
    cut = fed.network.cut()
    cut.__enter__()
    return Harm(lambda: cut.__exit__(None, None, None), random.uniform(1, 6))


# By kind of machine, with their weights: what is small happens more often.
OF_NODES: dict[str, tuple[Fault, int]] = {
    "training killed": (process_killed("task"), 4),
    "warm parent of a node killed": (process_killed("warm"), 4),
    "node killed": (killed, 2),
    "process of a node paused": (process_paused("supervisor", "warm", "task"), 4),
    "network of a node cut": (network_cut, 4),
}
OF_LINK: dict[str, tuple[Fault, int]] = {
    "ServerApp killed": (process_killed("task"), 2),
    "SuperLink killed": (process_killed("superlink"), 2),
    "link killed": (killed, 1),
    "SuperLink paused": (process_paused("superlink"), 2),
}


def harm(fed: Federation, random: Random) -> tuple[str, str, Harm] | None:
    """Do a fault to a machine; one that cannot be done just now is drawn again.

    Returns:
        The fault, the machine and what is left to do; None if nothing could be done.
    """
    for _ in range(20):
        name = random.choice(["link", *fed.wards])
        faults = OF_LINK if name == "link" else OF_NODES
        (fault,) = random.choices(list(faults), [weight for _, weight in faults.values()])
        done = faults[fault][0](fed, random, name)
        if done is not None:
            return fault, name, done
    return None
