"""What goes together, runs; what does not, is refused before round 1; and the docs say which is which."""

from __future__ import annotations

from pathlib import Path

import pytest

from task.catalogue.algorithms import ALGORITHMS
from task.errors import ConfigError
from task.resolve.composition import CHOICES, OWN, Choice
from task.resolve.read import read_config
from task.resolve.validate import check_names
from tests.pages import composition
from tests.support.federation import play, write_owners
from tests.support.shapes import by_shape
from tests.test_contract import config

ROOT = Path(__file__).resolve().parents[1]
CELLS = [(name, choice) for name in ALGORITHMS for choice in CHOICES]
ALLOWED = [(n, c) for n, c in CELLS if not c.why_not(ALGORITHMS[n])]
REFUSED = [(n, c) for n, c in CELLS if c.why_not(ALGORITHMS[n])]


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("owners") / "owners.npz"
    write_owners(path)
    return path


def keys_of(owners: Path, name: str, choice: Choice) -> dict[str, object]:
    value = choice.values[list(ALGORITHMS).index(name) % len(choice.values)]
    value = {OWN: "torch.optim:SGD", "> 0": 0.4, "< 1": 0.5}.get(str(value), value)
    extra: dict[str, object] = {choice.key: value}
    if choice.key == "attack.kind":
        extra |= {"attack.fraction": 0.4}
    if choice.key in ("dp.noise", "dp.unit"):
        # Clients' losses are not protected, and mu must not follow them.
        extra = {"dp.noise": 0.4, **extra, "dp.delta": 0.01, "fedprox.adaptive": False}
    if choice.key == "secagg-bits":
        extra |= {"secagg": True, "max-update-norm": 100.0}
    if choice.key in ("dropout-width", "width.levels"):
        extra |= {"model": "mlp"}  # which has units to leave out
    given = config(owners, name, num_server_rounds=2, local_test_fraction=0.3) | extra
    if choice.key == "models.levels":  # in place of one model
        del given["model"]
        given |= {"models.features": 8}
    return given


@pytest.mark.parametrize(("name", "choice"), by_shape(ALLOWED, share=2), ids=str)
def test_what_goes_together_runs(name: str, choice: Choice, owners: Path) -> None:
    keys = keys_of(owners, name, choice)
    assert choice.chosen(read_config(keys))
    rows = play(keys, nodes=3 if choice.key.startswith("secagg") else 1).rows
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert [row["quarantined"] for row in rows[1:]] == [[], []]
    assert rows[2]["answered"] > 0


@pytest.mark.parametrize(("name", "choice"), REFUSED, ids=str)
def test_what_does_not_is_refused_with_the_reason(name: str, choice: Choice, owners: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        check_names(read_config(keys_of(owners, name, choice)))
    text = str(refused.value)
    assert f'"{choice.key}"' in text
    assert name in text
    assert choice.why_not(ALGORITHMS[name]) in text


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/composition.md").read_text() == composition(), "run make docs"
