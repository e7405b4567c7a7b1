"""Shakespeare's roles from Project Gutenberg's plain text of the complete works (ebook 100).

    python -m task.datasets.gutenberg pg100.txt ~/.cache/bouquet/data

It writes ``shakespeare/roles.jsonl.gz`` below the folder, which ``dataset = "shakespeare"`` reads: a JSON
object for each role with ``play``, ``role`` and ``lines``. The book is not downloaded: bring the file.

The book's table of contents names the works; the ones that have roles are plays. A play has one of two forms:

* ``KING.`` alone on a line, and below it the speech, not indented; what is indented or in brackets is a stage
  direction;
* ``  KING. My lord,`` indented by two to three blanks, and the further lines of the speech by four or more;
  stage directions have other margins or stand in brackets.

A role is a play and a name, in upper case. Roles with fewer than ``MINIMUM`` lines are left out, as in
McMahan et al. 2017. The paper does not say how it treats spellings and groups ("ALL", "BOTH"); here each name
is a role. Typographic quotes and dashes become those of ASCII, as the data set's characters
are bytes.
"""

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from task.errors import BouquetError, DataError, local, reason
from task.storage.files import write_bytes

MINIMUM = 2  # lines of a role
BRING = "Bring the plain text (UTF-8) of Project Gutenberg's ebook 100, the complete works"
CONTENTS = re.compile(r"\s*contents\s*", re.IGNORECASE)
END = re.compile(r"\*\*\* ?END OF (THE|THIS) PROJECT GUTENBERG", re.IGNORECASE)
ALONE = re.compile(r"([A-Z][A-Z0-9'&, -]*[A-Z0-9])\.")  # "KING HENRY."
SAME_LINE = re.compile(r" {1,3}([A-Z][A-Za-z0-9'& -]*)\.(?: (.*)|)")  # "  KING. My lord,"
HEADING = re.compile(r"\s*((ACT|SCENE)\s+[IVXLC\d]+\b.*|(THE )?(PROLOGUE|EPILOGUE|INDUCTION))", re.IGNORECASE)
DIRECTION = re.compile(r"\[.*?\]|\[.*$")  # as much of it as is on the line
ENTRANCE = re.compile(r"\s*_?(Enter|Re-enter|Exit|Exeunt|Manet|Flourish|Alarum)\b")
SPEECH_INDENT = 4
PLAIN = str.maketrans({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2014: "--"})

Roles = Mapping[tuple[str, str], list[str]]  # lines by play and role


def roles_of(text: str, source: str) -> Roles:
    """Return the lines of each role with at least ``MINIMUM`` lines, in the order of the book.

    Args:
        text: The whole book, as Project Gutenberg has it.
        source: Its name in errors.

    Raises:
        DataError: It has no table of contents, or none of its works has roles.
    """
    lines = text.lstrip("\ufeff").translate(PLAIN).splitlines()
    start, titles = _contents(lines, source)
    found: dict[tuple[str, str], list[str]] = {}
    title, play = "", list[str]()
    for line in [*lines[start:], ""]:
        if END.match(line):
            break
        if line.strip() in titles:
            _add(found, title, play)
            title, play = line.strip(), []
        elif title:
            play.append(line)
    _add(found, title, play)
    kept = {key: spoken for key, spoken in found.items() if len(spoken) >= MINIMUM}
    if not kept:
        raise DataError(
            f"{local(source)}: expected plays with a role's name in capitals and a full stop before each "
            f"speech; got none in {len(titles)} works. {BRING}"
        )
    return kept


def _contents(lines: Sequence[str], source: str) -> tuple[int, frozenset[str]]:
    """Return where the works begin, and their titles."""
    at = next((i for i, line in enumerate(lines) if CONTENTS.fullmatch(line)), len(lines)) + 1
    titles = list[str]()
    for line in map(str.strip, lines[at:]):
        if line in titles or line != line.upper():  # the first work begins
            break
        at += 1
        if line:
            titles.append(line)
    if not titles:
        raise DataError(
            f'{local(source)}: expected a line "Contents" and below it the titles of the works in capitals; '
            f"got none. {BRING}"
        )
    return at, frozenset(titles)


def _add(found: dict[tuple[str, str], list[str]], title: str, play: Sequence[str]) -> None:
    for role, line in _spoken(play):
        found.setdefault((title, role), []).append(line)


def _spoken(play: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield role and line of a work, for each line that is spoken."""
    role, indent = "", 0
    inside = False  # a stage direction in brackets that goes over lines
    for raw in play:
        line = raw.rstrip()
        if inside:
            inside = "]" not in line
            continue
        if not line.strip() or HEADING.fullmatch(line):
            role = role if not line.strip() else ""
            continue
        if match := ALONE.fullmatch(line):
            role, indent = _name(match[1]), 0
            continue
        match = SAME_LINE.fullmatch(line)
        if match and match[1] == match[1].upper():
            role, indent, line = _name(match[1]), SPEECH_INDENT, " " * SPEECH_INDENT + (match[2] or "")
        inside = line.rfind("[") > line.rfind("]")
        spoken = DIRECTION.sub("", line).rstrip()
        margin = len(spoken) - len(spoken.lstrip())
        fits = margin == 0 if indent == 0 else margin >= SPEECH_INDENT
        if role and spoken.strip() and fits and not ENTRANCE.match(spoken):
            yield role, " ".join(spoken.split())


def _name(text: str) -> str:
    return " ".join(text.split()).upper()


def write_roles(book: Path, folder: Path) -> tuple[Path, Roles]:
    """Write ``folder/shakespeare/roles.jsonl.gz`` from a book's file; return its path and the roles.

    Raises:
        DataError: The file cannot be read, or is another book.
    """
    try:
        text = book.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{local(book)}: expected a plain text in UTF-8; got {reason(err)}") from err
    roles = roles_of(text, str(book))
    path = folder / "shakespeare" / "roles.jsonl.gz"
    rows = (
        json.dumps({"play": play, "role": role, "lines": lines}, ensure_ascii=False) + "\n"
        for (play, role), lines in roles.items()
    )
    write_bytes(path, gzip.compress("".join(rows).encode(), mtime=0))
    return path, roles


def main() -> int:
    """Run as a command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m task.datasets.gutenberg", description=__doc__.split("\n")[0]
    )
    parser.add_argument("book", type=Path, help="plain text of the complete works, ebook 100")
    parser.add_argument("folder", type=Path, help="data folder, $BOUQUET_DATA of the runs")
    given = parser.parse_args()
    try:
        path, roles = write_roles(given.book, given.folder)
    except BouquetError as err:
        print(f"error: {err}", file=sys.stderr)
        return 65
    plays = len({play for play, _ in roles})
    print(f"{path}: {len(roles)} roles of {plays} plays, {sum(map(len, roles.values()))} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
