"""Fuzz for some time, or repeat one case: ``python -m tests.fuzz --help``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.check import violations
from tests.fuzz.runs import FORMS, VARIANTS, Case, Played, Player


def main() -> int:
    """Play cases; return 1 if one of them broke a rule."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default 600)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first cases; each turn takes the next (default 1)"
    )
    parser.add_argument("--only", default="", help="variants, with commas between; default all")
    parser.add_argument("--case", default="", metavar="VARIANT:FORM:SEED", help="this case, in full")
    given = parser.parse_args()
    chosen = given.only.split(",") if given.only else list(VARIANTS)
    if unknown := set(chosen) - VARIANTS.keys():
        parser.error(f"--only: expected some of {', '.join(VARIANTS)}; got {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="bouquet-fuzz-") as folder:
        player = Player(Path(folder))
        if given.case:
            name, form, seed = given.case.rsplit(":", 2)
            return _show(player.play(Case(name, form, int(seed))), player)
        return _fuzz(player, chosen, given.seed, given.seconds)


def _fuzz(player: Player, chosen: list[str], seed: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    cases, seen = 0, Counter[str]()
    while time.monotonic() < end:
        for name in chosen:
            for form in FORMS:
                if time.monotonic() >= end:
                    break
                case = Case(name, form, seed)
                broken = violations(played := player.play(case), player)
                cases += 1
                for line in broken:
                    seen[f"{name}: {line}"] += 1
                    print(f"{case.command}\n    {line}\n    {_said(played)}", flush=True)
        seed += 1
    print(f"{cases} cases, {sum(seen.values())} findings; next: --seed {seed}")
    return 1 if seen else 0


def _said(played: Played) -> str:
    return f"{played.kind}: " + " | ".join(dict.fromkeys(played.said.values()))


def _show(played: Played, player: Player) -> int:
    print(_said(played), *sorted(played.said), sep="\n  ")
    for row in played.rows:
        told = {
            k: row[k]
            for k in ("round", "answered", "asked", "skipped", "train_loss", "client_accuracy", "metrics")
        }
        print(told, *(line["reason"] for line in row["quarantined"]), sep="\n    ")
    print(played.error)
    broken = violations(played, player)
    print("\n".join(broken) or "nothing is broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
