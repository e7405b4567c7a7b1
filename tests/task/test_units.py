"""Durations and sizes are put into words in one place."""

from __future__ import annotations

import re

from tests.test_layering import NAMES

# A number of seconds or bytes that an f-string brings into a unit by itself.
BY_HAND = re.compile(r"\{[^{}\n]*(?:>> ?20|/ ?2 ?\*\* ?20|/ ?1e[369]|/ ?1024|/ ?3600|/ ?60)\b[^{}\n]*\}")


def test_no_module_makes_words_of_seconds_or_bytes_by_itself() -> None:
    """Hours of a run of seconds read "0.00 h", and MiB stood beside MB for the same thing."""
    found = {name: BY_HAND.findall(path.read_text("utf-8")) for name, path in NAMES.items()}
    assert {name for name, texts in found.items() if texts} == {"task.units"}
