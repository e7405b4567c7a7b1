"""What is promised to stay: the code, a run's files and the committed list of them agree."""

from __future__ import annotations

import json
from pathlib import Path

from tests.promise import FILE, run_folder, written


def test_the_promise_is_kept(tmp_path: Path) -> None:
    """A name, key, default, option, exit code, record or column that changed: `make docs`, and CHANGELOG."""
    promised = json.loads(FILE.read_text(encoding="utf-8"))
    found = json.loads(written(run_folder(tmp_path)))
    assert found.keys() == promised.keys()
    for part, content in promised.items():  # part by part, for a short difference
        assert found[part] == content, f"{part}: run `make docs`; CHANGELOG says what changed"


def test_the_page_names_every_part() -> None:
    page = FILE.with_suffix(".md").read_text(encoding="utf-8")
    for part in json.loads(FILE.read_text(encoding="utf-8")):
        assert f"`{part}`" in page, part
