"""``python -m tests.faults``: do the faults and print the table."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.case import Case, NotCoveredError, Rig, run_tests
from tests.faults.table import cases, listing, write_page

OK, FAIL, LEFT_OUT = "ok", "FAIL", "not covered"


def do(case: Case, rig: Rig, *, tests: bool = True) -> tuple[str, str, float]:
    """Do a case; return how it went, what was seen and the seconds that it took."""
    began = time.monotonic()
    try:
        seen = [case.run(rig)]
        if tests and case.tests:
            seen.append(run_tests(case.tests))
        return OK, "; ".join(filter(None, seen)), time.monotonic() - began
    except NotCoveredError as err:
        return LEFT_OUT, str(err), time.monotonic() - began
    except Exception as err:  # one that fails must not keep the others from being done
        return FAIL, f"{type(err).__name__}: {err}", time.monotonic() - began


def main() -> int:
    """Run from the command line; the exit code is 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="", help="ids, with commas between: R9,R10,S3")
    parser.add_argument("--list", action="store_true", help="list the faults and what must hold")
    parser.add_argument("--repeat", type=int, default=1, help="random moments of each case that has them")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments")
    parser.add_argument("--write", metavar="FILE", help="write docs/explain/faults.md, and do nothing else")
    parser.add_argument("--folder", help="where to leave all logs; else they are deleted")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(130))  # so that everything is stopped
    chosen = cases(options.only)
    if options.write:
        write_page(Path(options.write))
        return 0
    if options.list:
        print(listing(chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="bouquet-faults-", ignore_cleanup_errors=True) as temporary:
        folder = Path(options.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        failed, began = 0, time.monotonic()
        with Rig(folder, options.repeat, options.seed) as rig:
            for case in chosen:
                how, seen, seconds = do(case, rig)
                failed += how == FAIL
                head, _, more = seen.partition("\n")
                print(f"{case.id:4}{how:12}{seconds:6.1f} s  {case.title} | {case.how} | {head}", flush=True)
                if how == FAIL and more:
                    print(more, file=sys.stderr, flush=True)
        print(f"{len(chosen) - failed} of {len(chosen)} without failure in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
