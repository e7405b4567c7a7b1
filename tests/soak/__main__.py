"""``python -m tests.soak``: one long run with a fault every few seconds, and a page of what came of it."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from task.storage.files import write_text
from tests.faults.federation import Federation
from tests.faults.network import network, possible
from tests.faults.runs import reference
from tests.soak.faults import harm
from tests.soak.report import Report

LOOK_S = 0.25
MEMORY_S = 10.0  # reading the memory of forty processes takes a while itself
STUCK_S = 300.0  # without a new round


def soak(folder: Path, report: Report) -> None:
    """Do the run and harm it until it is over; `report` is filled in as it goes.

    Raises:
        AssertionError: No round was done for too long.
    """
    random = Random(report.seed)
    with ExitStack() as stack:
        net = None if possible() else stack.enter_context(network())
        fed = Federation(folder / "federation", net, tuple(f"ward-{i + 1}" for i in range(report.nodes)))
        stack.callback(fed.stop)
        fed.start()
        hashes = reference(folder / "undisturbed", fed.data, report.rounds)
        run = fed.submit("soak", report.rounds, min_replies=report.nodes)
        began = last = time.monotonic()
        next_fault, next_memory, done = began + report.every_s, began, -1
        mends: list[tuple[float, Callable[[], object]]] = []
        try:
            while not run.job().ended:
                time.sleep(LOOK_S)
                now = time.monotonic()
                for due in [m for m in mends if m[0] <= now]:
                    mends.remove(due)
                    due[1]()
                if now >= next_fault and done >= 0:
                    next_fault = now + report.every_s
                    if (did := harm(fed, random)) is not None:
                        fault, machine, left = did
                        report.faults[fault] += 1
                        if left.after_s:
                            mends.append((now + left.after_s, left.mend))
                        print(f"{now - began:7.0f} s  {fault} ({machine})", flush=True)
                if now >= next_memory:
                    report.memory.look(fed, now - began)
                    next_memory = now + MEMORY_S
                    rows = run.rows()
                    if rows and rows[-1]["round"] != done:
                        done, last = rows[-1]["round"], now
                        print(
                            f"{now - began:7.0f} s  round {done}, {report.faults.total()} faults", flush=True
                        )
                assert now - last < STUCK_S, f"no round for {STUCK_S:g} s after round {done}\n{fed.logs()}"
        finally:
            for _, mend in mends:
                mend()
            report.seconds = time.monotonic() - began
            job, report.rows = run.job(), run.rows()
            report.state, report.attempts = job.state, job.attempts
            found = [row["model_sha256"] for row in report.rows]
            report.odd = [i for i, (a, b) in enumerate(zip(found, hashes, strict=False)) if a != b]
            database = fed.link_kit.database
            report.database = database.stat().st_size if database.exists() else 0


def main() -> int:
    """Run from the command line; the exit code is 1 unless all rounds were done and all models are equal."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--seconds-between-faults", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--out", help="page to write; else it is printed")
    parser.add_argument("--folder", help="where to leave all logs; else they are deleted")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)  # so that everything is stopped
    report = Report(options.rounds, options.nodes, options.seed, options.seconds_between_faults)
    with tempfile.TemporaryDirectory(prefix="bouquet-soak-", ignore_cleanup_errors=True) as temporary:
        folder = Path(options.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            soak(folder, report)
        except (AssertionError, KeyboardInterrupt) as err:
            print(f"ended early: {err or type(err).__name__}", file=sys.stderr)
            report.state = report.state or "ended early"
    if options.out:
        write_text(Path(options.out), report.page())
    print(report.page())
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
