"""A level that no client has is said before round 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import Keep, owners_config, play, write_owners


class Remarks(Keep):
    """Keeps what is said to whoever watches the run, with the rounds that were done by then."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[int, str]] = []

    def remark(self, line: str) -> None:
        self.said.append((len(self.rows), line))


@pytest.mark.parametrize(
    ("keys", "none"),
    [
        ({"algorithm": "fedmd", "models__levels": "mlp,2nn,logistic", "public__examples": 9}, "logistic"),
        ({"algorithm": "feddf", "models__levels": "mlp,2nn,logistic", "public__examples": 9}, "logistic"),
        ({"algorithm": "fedavg", "model": "mlp", "width__levels": "1,0.5,0.25"}, "0.25"),
        ({"algorithm": "fedavg", "model": "mlp", "width__levels": "1,0.5"}, ""),
    ],
)
def test_a_level_without_clients_is_said(keys: dict[str, Any], none: str, tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz", {"anna": 30, "ben": 30})  # of whom no third has any of three levels
    made = owners_config(tmp_path / "owners.npz", **{"num_server_rounds": 2, "seed": 5} | keys)
    journal = Remarks()
    play({k: v for k, v in made.items() if k != "model" or "model" in keys}, journal=journal)
    found = [line for done, line in journal.said if "none of the 2 clients has" in line and done <= 1]
    assert len(found) == bool(none)
    assert all(none in line for line in found)
