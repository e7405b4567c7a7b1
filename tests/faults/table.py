"""The table of all faults: their order, and the page that lists them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from task.errors import ConfigError, choose_from
from tests.faults.case import CASES, ROOT, Case

for path in sorted(Path(__file__).parent.glob("cases_*.py")):
    import_module(f"tests.faults.{path.stem}")  # its cases register themselves

PAGE_FILE = ROOT / "docs" / "explain" / "faults.md"
PAGE = """# Faults and attacks

These faults and attacks are tested on a federation of real processes; the tables say what must
hold. Run them yourself:

```bash
make faults                              # all of them; prints one line per fault with the observed result
python -m tests.faults --only R1,S2      # some of them
```

A federation is one `bouquet link` and three `bouquet node`, each with its own data, over TLS with
node keys. As root on Linux the link and one node have their own network namespaces. Without root
the cases that need namespaces are skipped, and say so.

"Same final model" means: after every round the SHA-256 of the model equals that of an undisturbed
run of the same keys in the simulation.

## Faults

{faults}

## Attacks

{attacks}

## Tests of each case

The cases are tests themselves, in `tests/system/test_faults_*.py`. `make faults` also runs these,
which belong to single cases:

{tests}
"""


def order(id: str) -> tuple[str, int]:
    """Return what sorts ids: R1, R2, ..., S1, S2, ..."""
    return id[0], int(id[1:])


def cases(only: str = "") -> list[Case]:
    """Return the cases, or those whose ids are given with commas between.

    Raises:
        ConfigError: There is no such case.
    """
    ids = [i.strip() for i in only.split(",") if i.strip()] or sorted(CASES, key=order)
    for i in ids:
        if i not in CASES:
            raise ConfigError(choose_from("--only", i, CASES))
    return [CASES[i] for i in ids]


def listing(chosen: list[Case]) -> str:
    """Return a line per case."""
    return "\n".join(f"{c.id:4}{c.title}: {c.guarantee}" for c in chosen)


def page() -> str:
    """Return the page docs/explain/faults.md."""
    tests = [f"| {c.id} | {'<br>'.join(f'`{t}`' for t in c.tests)} |" for c in cases() if c.tests]
    return PAGE.format(
        faults=_table("fault", [c for c in cases() if c.id[0] == "R"]),
        attacks=_table("attack", [c for c in cases() if c.id[0] == "S"]),
        tests="\n".join(["| ID | tests |", "|---|---|", *tests]),
    )


def _table(kind: str, chosen: list[Case]) -> str:
    head = [f"| ID | {kind} | what must hold | how it is tested |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {c.id} | {c.title} | {c.guarantee} | {c.how} |" for c in chosen)])


def write_page(path: Path) -> None:
    """Write the page."""
    path.write_text(page(), encoding="utf-8")
