"""Pages are easy to read: an example first, short lines and paragraphs, measured figures in one place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GENERATED = {"algorithms", "commands", "composition", "keys", "reproduction", "soak"}
WIDTH, PARAGRAPH, BEFORE = 100, 85, 150  # letters; words; words before the first example
MEASURED = r"\d ± \d|\d\.\d+ %|\bbusy (?:core|machine)"  # deviations, precise shares, what else ran
WRITTEN = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docker").glob("*.md")),
]
PAGES = [page for page in WRITTEN if page.stem not in GENERATED]


def prose(text: str) -> str:
    """Return a page without its blocks of code and its tables, and links without their targets."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.S | re.M)
    text = re.sub(r"^ *(?:\||!\[).*$", "", text, flags=re.M)
    return re.sub(r"\]\([^)]*\)", "]", text)


def paragraphs(text: str) -> Iterator[str]:
    """Return paragraphs and items of lists."""
    yield from re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", prose(text))


def faults(page: str, text: str) -> list[str]:
    """Return what makes a page hard to read, each fault in a line."""
    found = [
        f"{page}: a line of {len(line)} letters, at most {WIDTH}: {line}"
        for line in prose(text).splitlines()
        if len(line) > WIDTH
    ]
    found += [
        f"{page}: a paragraph of {len(part.split())} words, at most {PARAGRAPH}: {part.strip()[:60]} ..."
        for part in paragraphs(text)
        if len(part.split()) > PARAGRAPH
    ]
    before = re.split(r"^(?:```|    \S)", text, maxsplit=1, flags=re.M)
    if len(before) == 1 or len(before[0].split()) > BEFORE:
        found.append(f"{page}: expected an example before {BEFORE} words of explanation")
    if not page.startswith("docs/results/"):
        plain = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.S | re.M)
        found += [
            f"{page}: measured figures belong to docs/results: {line.strip()}"
            for line in plain.splitlines()
            if re.search(MEASURED, line)
        ]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_easy_to_read(page: Path) -> None:
    assert faults(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")) == []


def test_each_fault_is_found() -> None:
    code = "```bash\nbouquet run\n```\n"
    good = f"# Page\n\nUse it.\n\n{code}\n| {'w ' * 99} |\n\n[a](x.md)\n"
    assert faults("docs/howto/a.md", good) == []
    planted = {
        "a line of": good + "\n" + "letters " * 13 + "\n",
        "a paragraph of": good + "\n" + "a word\n" * 43,
        "expected an example": "# Page\n\n" + "Words first.\n\n" * 80 + code,
        "measured figures": good + "\n| model | 91.4 ± 0.2 |\n",
    }
    for said, text in planted.items():
        (fault,) = faults("docs/howto/a.md", text)
        assert said in fault
    assert faults("docs/results/a.md", planted["measured figures"]) == []
