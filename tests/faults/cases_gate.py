"""Replies that are well-formed and still do harm: numbers out of range, a model that spoils training."""

from __future__ import annotations

import contextlib
import json

from tests.faults.case import Rig, case
from tests.faults.cases_replies import REPLY_BYTES, attacked, named
from tests.faults.hostile import SPOILING

OUT_OF_RANGE = (
    "a loss below 0", "more examples than it registered", "an accuracy of 1e30", "-40 test examples",
)  # fmt: skip
TRUDY = "trudy"


@case(
    "S11",
    "Scalars outside their range: losses, accuracies, counts, more examples than were registered",
    "each is refused, named and logged; the model is the same as without them; the run goes on",
    "a hostile node with a valid key sends them one by one",
    tests=("tests/strategies/test_ranges.py",),
)
def out_of_range(rig: Rig) -> str:
    found = attacked(rig)
    lines = named(found, OUT_OF_RANGE)
    some = lines["more examples than it registered"]
    return f"{len(lines)} kinds refused and named ({some[:110]}); {found['words']}"


@case(
    "R21",
    "A finite reply after which the honest clients' training overflows",
    "the run goes back to the last model that they could train from, says so, and finishes",
    "a hostile node sends the model times 2e7 in round 1",
    tests=("tests/strategies/test_recovery.py", "tests/task/test_norms.py"),
)
def spoiled(rig: Rig) -> str:
    fed = rig.fed()
    kit = rig.enrol(TRUDY)
    hostile = fed.begin_attack(
        "hostile", fed.address, str(kit / "ca.crt"), str(kit / "node.key"), TRUDY, str(REPLY_BYTES),
        json.dumps(list(SPOILING)),
    )  # fmt: skip
    try:
        fed.until(lambda: TRUDY in fed.online(), 60, f"{TRUDY} online")
        run = rig.submit_to(fed, 5, min_nodes=4)
        run.wait_end()
        _, err = hostile.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            hostile.kill()
    assert hostile.returncode == 0, err[-2000:]
    rows = run.rows()
    assert rows[1]["answered"] == 4, rows[1]
    assert [row["rolled_back"] for row in rows] == [None, None, 0, None, None, None], rows
    assert rows[2]["model_sha256"] == rows[0]["model_sha256"] != rows[1]["model_sha256"]
    assert all(row["answered"] >= 3 and not row["skipped"] for row in rows[3:]), rows
    diverged = {q["client"] for q in rows[2]["quarantined"]}
    assert diverged >= set(fed.wards), rows[2]["quarantined"]
    return (
        f"{len(diverged)} clients diverged in round 2, which went back to the model after round 0; finished"
    )
