"""``scale``: fifty nodes on one link for hundreds of rounds, and what one that floods costs the others.

One of them is a real node, the others share a process (`tests.bench.light`): their connections, tasks and
models are those of real nodes.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from server_app.deploy.host.resource_limits import proportional_bytes
from server_app.deploy.kits.kit import LinkKit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link.status import read_status
from server_app.engines.federation import Federation, federation
from task.storage.files import private
from tests.bench.data import ROOT
from tests.bench.processes import read_rows
from tests.bench.readings import Row, growth, median, paired
from tests.bench.rounds import MANY, W1, Bench

NODES, ROUNDS = 50, 500
WORKERS = 2
LOOK_S = 0.1
STARTS_S = 180.0
ROLES = {"cli.main": "keeper", "flower.superlink": "superlink", "flower.warm": "parent"}  # by module
SHOWN = ("keeper", "superlink", "parent", "serverapp", "node", "node-parent")  # whose memory has a row
KEYS: dict[str, Any] = {
    "dataset": "digits", "model": "mlp", "partition": "iid", "fraction-train": 1.0, "local-epochs": 1,
    "batch-size": 10, "learning-rate": 0.1, "local-test-fraction": 0.0, "device": "cpu", "threads": 1,
    "evaluate-every": 10, "progress": "none",
}  # fmt: skip


S = TypeVar("S")


@dataclass
class Seen:
    """A link in the midst of a run.

    Attributes:
        memory: Of each of its processes, MB (proportional set size).
        tables: Rows of each table of its database.
        database: Bytes of its database.
        files: Files in its kit.
        cpu: Seconds of each of its processes, and of those that it has forked and that have ended.
    """

    memory: dict[str, float]
    tables: dict[str, int]
    database: int
    files: int
    cpu: dict[str, float]

    @classmethod
    def now(cls, kit: LinkKit, keeper: int, others: Mapping[str, int]) -> Seen:
        """Look at a link, by the process id of its keeper, and at other processes."""
        pids = dict(others)
        for process in (p := psutil.Process(keeper), *p.children(recursive=True)):
            line = " ".join(process.cmdline())
            role = next((role for module, role in ROLES.items() if f"server_app.{module}" in line or
                         f"server_app.deploy.{module}" in line), line[:40])  # fmt: skip
            pids["serverapp" if role in pids else role] = process.pid
        size = sum(p.stat().st_size for p in kit.state.glob("link.db*"))
        files = sum(p.is_file() for p in kit.path.rglob("*"))
        memory = {role: proportional_bytes(pid) / 1e6 for role, pid in pids.items()}
        cpu = {role: sum(psutil.Process(pid).cpu_times()[:4]) for role, pid in pids.items()}
        return cls(memory, tables(kit.database), size, files, cpu)


def tables(database: Path) -> dict[str, int]:
    """Return the number of rows of each table of a database that has some."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: int(db.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0]) for name in names}
    return {name: n for name, n in sorted(found.items()) if n}


@contextmanager
def fleet(count: int, runs: Path) -> Iterator[tuple[Federation, float]]:
    """Start a link with so many nodes, one of them real; yield it once all are online, and the seconds."""
    names = [f"node-{i:02d}" for i in range(count)]
    with federation({names[-1]: ["--partition", f"{count - 1}/{count}"]}, runs) as fed:
        kits = fed.kit.path.parent
        await_online(fed, 1)
        provision(kits, nodes=names)
        began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "tests.bench.light",
            str(kits),
            str(WORKERS),
            str(count),
            *names[:-1],
        ]
        with open(kits / "light.log", "ab", opener=private) as log:
            fed.processes["light"] = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        await_online(fed, count)
        yield fed, time.monotonic() - began


def await_online(fed: Federation, count: int) -> None:
    """Return when so many nodes are online.

    Raises:
        RuntimeError: They are not, in time.
    """
    deadline = time.monotonic() + STARTS_S
    while (online := sum(node["online"] for node in read_status(fed.kit)["nodes"])) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"expected {count} nodes online in {STARTS_S:g} s; got {online}\n{fed.logs()}")
        time.sleep(LOOK_S)


def watch(
    fed: Federation, keys: Mapping[str, Any], at: Sequence[int], runs: Path, look: Callable[[], S]
) -> tuple[list[dict[str, Any]], list[S]]:
    """Do a run; return its rounds, and what is seen after some of them."""
    folder, seen, waits = runs / keys["run-name"], list[S](), list(at)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(fed.run, keys)
        while not running.done():
            path = folder / "rounds.jsonl"
            if waits and path.exists() and path.read_bytes().count(b"\n") > waits[0]:
                seen.append(look())
                print(f"round {waits.pop(0)}: {seen[-1]}", flush=True)
            time.sleep(LOOK_S)
        running.result()
    return read_rows(folder), seen


def scale(bench: Bench) -> Iterator[Row]:
    """Compare the last rounds of a long run of many nodes with its first ones."""
    count, rounds = (6, 30) if bench.quick else (NODES, bench.rounds or ROUNDS)
    early = rounds // 25 or 1
    runs = bench.folder("scale")
    keys = KEYS | {"num-clients": count, "num-server-rounds": rounds, "run-name": "scale"}
    os.environ.update({name: bench.env[name] for name in ("BOUQUET_DATA", "BOUQUET_CACHE")})
    with fleet(count, runs) as (fed, online_s):
        light, link = (fed.processes[name].pid for name in ("light", "link"))
        node = fed.node(f"node-{count - 1:02d}").pid
        others = {"others": light, "node": node, "node-parent": psutil.Process(node).children()[0].pid}
        others |= {f"worker-{i}": p.pid for i, p in enumerate(psutil.Process(light).children())}
        # The last sample is one round before the end, after which the ServerApp ends.
        marks = sorted({early, *range(50, rounds - 1, 50), rounds - 1})
        rows, seen = watch(fed, keys, marks, runs, lambda: Seen.now(fed.kit, link, others))
    first, last = seen[0], seen[-1]
    seconds = [row["seconds"]["total"] for row in rows[1:]]
    width = max(rounds // 10, 1)
    quarter = rounds // 50 or 1
    same = (runs / "scale" / "model.safetensors").read_bytes() == _simulated(bench, keys)
    spent = {role: (last.cpu.get(role, 0) - first.cpu[role]) / (rounds - 1 - early) for role in first.cpu}
    busiest = ", ".join(f"{role} {spent[role]:.2f}" for role in sorted(spent, key=lambda r: -spent[r])[:3])
    detail = f"{count} nodes online in {online_s:.1f} s; CPU seconds of a round: {busiest}; "
    detail += f"a model equal to the simulation's: {same}"
    yield paired(
        "scale-round", f"a round at the end of {rounds} rounds : at the beginning",
        [median(seconds[-width:])], [median(seconds[quarter : quarter + width])], 1.1, detail=detail,
    )  # fmt: skip
    for role in SHOWN:
        yield growth(
            f"scale-memory-{role}", f"{role} after round {rounds - 1} - after {early}",
            [last.memory.get(role, 0.0)], [first.memory[role]], None,
        )  # fmt: skip
    yield paired(
        "scale-database", f"bytes of the database after round {rounds - 1} : after {early}",
        [last.database / 1e6], [first.database / 1e6], 1.2, "MB",
        f"rows {sum(last.tables.values())} : {sum(first.tables.values())}; "
        f"files of the link {last.files} : {first.files}",
    )  # fmt: skip


def _simulated(bench: Bench, keys: Mapping[str, Any]) -> bytes:
    """Return the bytes of the model that the simulation ends with."""
    names = [path.stem for path in (bench.work / "runs").glob("scale-simulated-*.log")]
    bench.simulate("scale-simulated", {k: v for k, v in keys.items() if k != "run-name"})
    (new,) = (p for p in (bench.work / "runs").glob("scale-simulated-*/") if p.name not in names)
    return (new / "model.safetensors").read_bytes()


def population(bench: Bench) -> Iterator[Row]:
    """Compare runs of ten of a million clients, whom three nodes share, with ten of a hundred."""
    count, rounds, runs = 3, bench.rounds or (2 if bench.quick else 20), bench.folder("population-link")
    many = 10_000 if bench.quick else MANY
    keys = W1 | {"partition": "bootstrap", "examples-per-client": 600, "num-server-rounds": rounds}
    os.environ.update({name: bench.env[name] for name in ("BOUQUET_DATA", "BOUQUET_CACHE")})
    sides = {
        name: list[float]() for name in ("round", "round few", "first", "first few", "memory", "memory few")
    }
    equal = True
    shares = {f"node-{i}": ["--partition", f"{i}/{count}"] for i in range(count)}
    with federation(shares, runs) as fed:
        await_online(fed, count)
        for i in range(1 if bench.quick else min(bench.repetitions, 3)):
            for side, clients in (("", many), (" few", 100)):
                name = f"population-{i}-{clients}"
                mine = keys | {"num-clients": clients, "fraction-train": 10 / clients, "run-name": name}
                family = [psutil.Process(process.pid) for process in fed.processes.values()]
                rows, (held,) = watch(fed, mine, (rounds - 1,), runs, partial(_held, family))
                sides["round" + side].append(median(row["seconds"]["total"] for row in rows[2:]))
                sides["first" + side].append(rows[1]["seconds"]["total"])
                sides["memory" + side].append(held)
            equal &= (runs / f"population-{i}-{many}" / "model.safetensors").read_bytes() == _simulated(
                bench, keys | {"num-clients": many, "fraction-train": 10 / many}
            )
    what = f"three nodes, 10 of {many:,} clients : of 100, {{}}".format
    detail = f"a model equal to the simulation's: {equal}"
    yield paired("population-link", what("a round"), sides["round"], sides["round few"], 1.1, detail=detail)
    first = what("round 1 with the registration")
    yield paired("population-link-first", first, sides["first"], sides["first few"], 1.2)
    held = what("memory without tasks")
    yield growth("population-link-memory", held, sides["memory"], sides["memory few"], 100.0)


def idle(bench: Bench) -> Iterator[Row]:
    """Compare the memory of ten idle nodes on one machine with that of two."""
    few, many = 2, 4 if bench.quick else 10
    sides = {few: list[float](), many: list[float]()}
    for count in [few, many] * (1 if bench.quick else min(bench.repetitions, 3)):
        shares = {f"node-{i}": ["--partition", f"{i}/{count}"] for i in range(count)}
        with federation(shares, bench.folder(f"idle-{count}")) as fed:
            await_online(fed, count)
            every = psutil.Process(fed.processes["nodes"].pid)
            held = sum(proportional_bytes(p.pid) for p in (every, *every.children(recursive=True)))
            sides[count].append(held / 1e6 / (many - few))
    what = f"a further node: ({many} idle nodes of one command - {few}) : {many - few}"
    yield growth("idle-node-memory", what, sides[many], sides[few], 60.0)


def _held(family: Sequence[psutil.Process]) -> float:
    """Return the memory of a link and its nodes, MB, without the tasks that nodes happen to have."""
    link, parent = family
    every = {link.pid, *(p.pid for p in link.children(recursive=True)), parent.pid}
    every |= {p.pid for node in parent.children() for p in (node, *node.children())}
    return sum(proportional_bytes(pid) for pid in every) / 1e6
