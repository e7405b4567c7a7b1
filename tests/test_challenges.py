"""docs/howto/challenges.md: it has all algorithms and names nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from task.catalogue.algorithms import ALGORITHMS
from task.config.read import defaults

PAGE = (Path(__file__).parents[1] / "docs" / "howto" / "challenges.md").read_text("utf-8")
CODE = set(re.findall(r"`([^`]+)`", PAGE))


def test_every_algorithm_has_its_challenge() -> None:
    assert set(ALGORITHMS) - CODE == set()


def test_every_name_is_an_algorithm_or_a_key() -> None:
    """A section stands for its keys, as in `drift.*`; a command is checked by running it elsewhere."""
    keys = set(defaults())
    sections = {f"{key.split('.')[0]}.*" for key in keys if "." in key}
    names = {text.split("=")[0] for text in CODE if not text.startswith("bouquet ")}
    assert names - set(ALGORITHMS) - keys - sections == set()
