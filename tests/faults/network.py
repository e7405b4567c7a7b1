"""Two network namespaces with a cable between them: one for the link, one for a node and the attackers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CUT = (("OUTPUT", "-o", "cable", "-j", "DROP"), ("INPUT", "-i", "cable", "-j", "DROP"))


def possible() -> str:
    """Return why there can be no namespaces here, "" if there can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "it needs root on Linux, for network namespaces"
    missing = [tool for tool in ("ip", "iptables", "tc") if shutil.which(tool) is None]
    if missing:
        return f"it needs {', '.join(missing)} (Debian: iproute2, iptables)"
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"ip netns: {done.stderr.strip()}"


@dataclass(frozen=True)
class Network:
    """The namespaces; a packet that wants anywhere else is dropped and counted.

    Attributes:
        link: Namespace of the link and of whoever is on its machine.
        ward: Namespace of one node and of whoever attacks from the network.
        address: The link's address on the cable.
        ward_address: The ward's.
    """

    link: str
    ward: str
    address: str
    ward_address: str

    def prefix(self, where: str) -> list[str]:
        """Return what runs a command in a namespace."""
        return ["ip", "netns", "exec", where]

    def run(self, where: str, *command: str, check: bool = True) -> str:
        """Run a short command in a namespace; return what it printed."""
        done = subprocess.run(
            [*self.prefix(where), *command], capture_output=True, text=True, timeout=60, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Drop what the ward sends and gets, without a word, as a broken cable does."""
        for rule in CUT:
            self.run(self.ward, "iptables", "-I", *rule)
        try:
            yield
        finally:
            self.heal()

    def heal(self) -> None:
        """Let packets of the ward pass again."""
        for rule in CUT:
            while self.run(self.ward, "iptables", "-S", rule[0]).count("cable -j DROP"):
                self.run(self.ward, "iptables", "-D", *rule)

    @contextmanager
    def slow(self, rate: str) -> Iterator[None]:
        """Let the ward send no faster, e.g. ``256kbit``, through a token bucket of the kernel."""
        bucket = ("dev", "cable", "root", "tbf", "rate", rate, "burst", "16k", "latency", "2s")
        self.run(self.ward, "tc", "qdisc", "add", *bucket)
        try:
            yield
        finally:
            self.run(self.ward, "tc", "qdisc", "del", "dev", "cable", "root")

    @contextmanager
    def bad_air(self, loss: float, delay_s: float) -> Iterator[list[int]]:
        """Lead what goes between ward and link through a bad Wi-Fi, see `tests.faults.air`.

        Args:
            loss: Share of the packets that get lost, in each direction.
            delay_s: How long each takes, one way.

        Yields:
            Empty; after the block, how many packets came and how many were dropped.
        """
        command = [*self.prefix(self.link), sys.executable, "-m", "tests.faults.air", self.ward]
        root = Path(__file__).resolve().parents[2]
        air = subprocess.Popen(
            [*command, str(loss), str(delay_s)], cwd=root, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        counts: list[int] = []
        ends = ((self.link, self.address, self.ward_address), (self.ward, self.ward_address, self.address))
        try:
            assert air.stdout is not None
            assert air.stdout.readline(), "no TUN device"
            for where, mine, theirs in ends:
                self.run(where, "ip", "link", "set", "air", "up", "mtu", "1500")
                self.run(where, "iptables", "-I", "OUTPUT", "-o", "air", "-j", "ACCEPT")
                self.run(where, "ip", "route", "add", theirs, "dev", "air", "src", mine)  # before the cable's
            yield counts
        finally:
            air.terminate()  # its devices and the routes go with it
            counts += map(int, air.communicate(timeout=10)[0].split())
            for where, *_ in ends:
                self.run(where, "iptables", "-D", "OUTPUT", "-o", "air", "-j", "ACCEPT", check=False)

    def strays(self) -> int:
        """Return how many packets wanted to leave the two machines for anywhere else."""
        lines = [
            line
            for where in (self.link, self.ward)
            for line in self.run(where, "iptables", "-L", "OUTPUT", "-v", "-n", "-x").splitlines()
            if "stray" in line
        ]
        assert len(lines) == 2, lines
        return sum(int(line.split()[0]) for line in lines)


@contextmanager
def network() -> Iterator[Network]:
    """Make two namespaces with a cable; they are gone at the end.

    Raises:
        RuntimeError: It cannot be done here.
    """
    number = os.getpid() % 60_000
    subnet = f"10.{200 + number // 256 % 50}.{number % 256}"
    net = Network(f"bq-link-{number}", f"bq-ward-{number}", f"{subnet}.1", f"{subnet}.2")
    ends = ((net.link, f"{subnet}.1", f"{subnet}.2"), (net.ward, f"{subnet}.2", f"{subnet}.1"))
    try:
        for where in (net.link, net.ward):
            _ip("netns", "add", where)
        _ip(
            "link",
            "add",
            "cable",
            "netns",
            net.link,
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            net.ward,
        )
        for where, mine, theirs in ends:
            net.run(where, "ip", "link", "set", "lo", "up")
            net.run(where, "ip", "address", "add", f"{mine}/30", "dev", "cable")
            net.run(where, "ip", "link", "set", "cable", "up")
            net.run(where, "ip", "route", "add", "default", "via", theirs)  # so that strays set out
            for rule in (("-o", "lo", "-j", "ACCEPT"), ("-d", f"{subnet}.0/30", "-j", "ACCEPT")):
                net.run(where, "iptables", "-A", "OUTPUT", *rule)
            net.run(where, "iptables", "-A", "OUTPUT", "-j", "DROP", "-m", "comment", "--comment", "stray")
        yield net
    finally:
        for where in (net.link, net.ward):
            subprocess.run(["ip", "netns", "del", where], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
