"""What shows only after a while."""

from __future__ import annotations

import statistics

from tests.faults.case import LONGEST, Rig, case

GROWTH = 1.10  # of memory, in a run that is too short for less; `make soak` asks for 1.05
DATABASE_BYTES = 16 << 20


@case(
    "R20",
    "A long run",
    "no failed round; the link's memory stays flat, its database bounded",
    f"{LONGEST} rounds here; `make soak` does 200 under a fault every 5 s and writes docs/results/soak.md",
)
def long_run(rig: Rig) -> str:
    run = rig.submit(LONGEST)
    link = run.fed.machines["link"]
    sizes: dict[str, list[int]] = {"superlink": [], "warm": [], "task": []}
    database = 0
    for server_round in range(2, LONGEST):
        run.wait_round(server_round)
        memory = link.memory()
        for role, seen in sizes.items():
            seen.append(memory[role])
        database = max(database, run.fed.link_kit.database.stat().st_size)
    run.wait_end()
    assert not run.quarantined(), run.quarantined()
    told = []
    for role, seen in sizes.items():
        quarter = len(seen) // 4
        first, last = statistics.median(seen[:quarter]), statistics.median(seen[-quarter:])
        assert last <= GROWTH * first, f"{role}: {first / 2**20:.0f} to {last / 2**20:.0f} MB"
        told.append(f"{role} {first / 2**20:.0f} to {last / 2**20:.0f} MB")
    assert database <= DATABASE_BYTES, f"{database / 2**20:.1f} MB"
    return f"{', '.join(told)}, database {database / 2**20:.1f} MB; {rig.same(run)}"
