"""What each change to Flower buys: a deployed run with it, against the same run without it.

A change is left out as on a version of Flower that lacks the names it needs: a ``sitecustomize`` module makes
the link's processes believe so. Clients' uploads are masked, since a round then has many small messages.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import psutil

from server_app.deploy.flower import names as deployed
from server_app.deploy.link.status import read_status
from server_app.engines.federation import Federation, federation
from task.config.read import read_recipe
from task.flower import names as anywhere
from task.flower.names import Use
from tests.bench.processes import read_rows
from tests.bench.readings import Row, median, paired
from tests.bench.rounds import Bench

NODES, PAIRS = 3, 3
SKIPPED = 2  # rounds that do not count: nodes load their data, connections are made
PATCHES: dict[str, Use] = {
    "economy": deployed.ECONOMY, "trees": deployed.TREES, "delivery": deployed.DELIVERY,
    "runtime": deployed.RUNTIME, "retries": deployed.RETRIES, "held": anywhere.HELD,
    "packed": anywhere.PACKED, "fetching": anywhere.FETCHING,
}  # fmt: skip
ROWS = tuple(f"patch-{name}" for name in PATCHES)
LACKS = "BOUQUET_BENCH_LACKS"
SITE = f"""
    import os
    if lacks := os.environ.get({LACKS!r}):
        from task.flower import names
        theirs = names.changes
        names.changes = lambda *uses: [lacks for use in uses if use.breaks == lacks] + theirs(*uses)
"""


def patches(bench: Bench) -> Iterator[Row]:
    """Compare rounds, and the SuperLink's CPU, with and without each change."""
    rounds = bench.rounds or (3 if bench.quick else 12)
    site = bench.folder("patches-site")
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(textwrap.dedent(SITE))
    for name, use in PATCHES.items():
        with_it, without = [], []
        for _ in range(1 if bench.quick else PAIRS):
            with_it.append(_measure(bench.folder(f"{name}-with"), rounds, site, ""))
            without.append(_measure(bench.folder(f"{name}-without"), rounds, site, use.breaks))
        cpu = [1000 * median(used for _, used in side) for side in (with_it, without)]
        yield paired(
            f"patch-{name}", f"a round with : without {use.why}",
            [seconds for seconds, _ in with_it], [seconds for seconds, _ in without], None,
            detail=f"the SuperLink's CPU {cpu[0]:.0f} : {cpu[1]:.0f} ms a round",
        )  # fmt: skip


def _measure(runs: Path, rounds: int, site: Path, lacks: str) -> tuple[float, float]:
    """Return the seconds of a round, and the SuperLink's CPU seconds for it."""
    keys = dict(read_recipe("demo")) | {
        "num-server-rounds": rounds, "secagg": True, "evaluate-every": rounds, "progress": "none",
        "run-name": "patches",
    }  # fmt: skip
    shares = {f"node-{i}": ["--partition", f"{i}/{NODES}"] for i in range(NODES)}
    places = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    with patch.dict(os.environ, {LACKS: lacks, "PYTHONPATH": places}), federation(shares, runs) as fed:
        time.sleep(2)  # the nodes have joined
        superlink = _superlink(fed)
        before = sum(superlink.cpu_times()[:2])
        fed.run(keys)
        used = sum(superlink.cpu_times()[:2]) - before
        said = read_status(fed.kit)["warnings"]
    if lacks and not any(lacks in line for line in said):
        raise RuntimeError(f"expected a status that says that it lacks: {lacks}; got {said}")
    seconds = [row["seconds"]["total"] for row in read_rows(runs / "patches")[1 + SKIPPED :]]
    return median(seconds), used / rounds


def _superlink(fed: Federation) -> psutil.Process:
    children = psutil.Process(fed.processes["link"].pid).children(recursive=True)
    (found,) = (one for one in children if "server_app.deploy.flower.superlink" in one.cmdline())
    return found
