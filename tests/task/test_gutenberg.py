"""The roles of the complete works: both forms in which the book prints a play, and what is no speech."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from task.datasets import base
from task.datasets.gutenberg import roles_of, write_roles
from task.errors import ConfigError, DataError
from tests.task.helpers import load
from tests.task.helpers import write_roles as roles_file

BOOK = """\ufeffThe Project Gutenberg eBook of The Complete Works of William Shakespeare

                    Contents

    THE SONNETS
    THE TRAGEDY OF THE KETTLE
    AS YOU BREW IT



THE SONNETS

                    1

Shall I compare thee to a kettle's steam?
Thou art more warm.

THE TRAGEDY OF THE KETTLE

Contents

ACT I
Scene I. A kitchen.

Dramatis Personæ

COOK, a cook.

ACT I

SCENE I. A kitchen.

 Enter Cook and Maid.

COOK.
The water\u2019s cold. [_Aside._] And so am I.
Who took the coal?

MAID.
[_Weeping, with her
apron up._]
Not I.

COOK.
Then go,
 [_Exit Maid._]

And bring me wood.

MAID.
I go.

CHORUS.
Two kettles,
Both alike.

BOY.
One line is not enough.

AS YOU BREW IT

ACT I. SCENE I.
An orchard

                    Enter BREWER and OLD ADAM

  BREWER. As I remember, Adam, it was thus;
    a barrel and a half. Mark me,
    it leaks.
                                                    Exit
  OLD ADAM. Yonder comes my master.
    [Exit]
    Your brother.
*** END OF THE PROJECT GUTENBERG EBOOK ***
  BREWER. Not part of it.
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOUQUET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BOUQUET_DATA", str(tmp_path))


def test_both_forms_of_a_play() -> None:
    kettle, brew = "THE TRAGEDY OF THE KETTLE", "AS YOU BREW IT"
    assert roles_of(BOOK, "book") == {
        (kettle, "COOK"): [
            "The water's cold. And so am I.",
            "Who took the coal?",
            "Then go,",
            "And bring me wood.",
        ],
        (kettle, "MAID"): ["Not I.", "I go."],
        (kettle, "CHORUS"): ["Two kettles,", "Both alike."],
        (brew, "BREWER"): [
            "As I remember, Adam, it was thus;",
            "a barrel and a half. Mark me,",
            "it leaks.",
        ],
        (brew, "OLD ADAM"): ["Yonder comes my master.", "Your brother."],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [("A poem.\n", 'a line "Contents"'), ("Contents\n  THE SONNETS\n\n\nTHE SONNETS\n", "got none in 1")],
)
def test_another_book_is_refused(text: str, said: str) -> None:
    with pytest.raises(DataError, match=f"book: .*{said}"):
        roles_of(text, "book")


def test_the_command_writes_what_the_data_set_reads(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(BOOK, "utf-8")
    command = [sys.executable, "-m", "task.datasets.gutenberg", str(tmp_path / "book.txt"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "5 roles of 2 plays, 13 lines" in done.stdout
    data = load(dataset="shakespeare", partition="natural", num_clients=0)
    assert len(data.owners.names) == 5
    first = (tmp_path / "shakespeare" / "roles.jsonl.gz").read_bytes()
    assert write_roles(tmp_path / "book.txt", tmp_path)[0].read_bytes() == first
    (tmp_path / "book.txt").write_bytes(b"\xff\xfe")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 65


def test_shuffled_lines_are_the_training_lines_in_equal_parts(tmp_path: Path) -> None:
    """Every line has a word of its own, so that it can be found again; 2 * 40 and 10 lines, a fifth tests."""
    roles = [
        ("Play", f"R{r}", [f"role{r} line{i:02}." for i in range(n)]) for r, n in enumerate((40, 40, 10))
    ]
    roles_file(tmp_path, roles)
    by_role = load(1, dataset="shakespeare")
    data, again, other = (load(s, dataset="shakespeare", shuffle_lines=True) for s in (1, 1, 2))
    assert again.fingerprint == data.fingerprint != other.fingerprint
    texts = []
    for owner in range(3):
        rows = data.owners.train(owner)
        y = data.y[rows].reshape(-1)
        texts.append((bytes([data.x[rows][0, 0]]) + bytes(y[y != base.PADDING].astype(np.uint8))).decode())
    found = [text.split("\n") for text in texts]
    assert [len(lines) for lines in found] == [24, 24, 24]
    assert sorted(line for lines in found for line in lines) == sorted(
        line for _, _, lines in roles for line in lines[: len(lines) * 4 // 5]
    )
    assert all(len({line.split()[0] for line in lines}) > 1 for lines in found)
    tests = [d.y[d.num_train :] for d in (by_role, data)]
    np.testing.assert_array_equal(*tests)


def test_shuffled_lines_need_lines(tmp_path: Path) -> None:
    folder = tmp_path / "shakespeare" / "all_data"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text('{"users": [], "user_data": {}}', "utf-8")
    with pytest.raises(ConfigError, match=r'"shuffle-lines".*no lines'):
        load(dataset="shakespeare", shuffle_lines=True)
