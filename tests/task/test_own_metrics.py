"""Metrics of a user's own: the pooled number whatever the split; what cannot be added is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.data.node import open_node
from client_app.data.registration import registration_of
from task.errors import ConfigError
from task.references import code_of, references_in
from task.resolve.read import read_config
from task.resolve.validate import check_names
from task.tasks.metrics import Measures, added
from tests.support.brought import imported_from
from tests.support.federation import owners_config, play, write_owners

# Expected calibration error over ten bins, and a metric of one array of a float.
CODE = """
import numpy as np
import torch

class Ece:
    def sums(self, outputs, y):
        p, k = torch.softmax(outputs.double(), 1).max(1)
        bins = (p * 10).long().clamp(0, 9)
        count = torch.bincount(bins, minlength=10)
        right = torch.bincount(bins, weights=(k == y).double(), minlength=10).long()
        return {"count": count, "right": right, "p": torch.bincount(bins, weights=p, minlength=10)}

    def value(self, sums):
        return np.abs(sums["right"] - sums["p"]).sum() / sums["count"].sum()

class Bias:
    @staticmethod
    def sums(outputs, y):
        return float((outputs - y).double().sum())

    @staticmethod
    def value(sums):
        return float(sums)

def squares(outputs, y): return 0
class Rows(Bias):
    def sums(self, outputs, y): return outputs[:, 0]
class Words(Bias):
    def sums(self, outputs, y): return ["a"]
class Fails(Bias):
    def sums(self, outputs, y): return outputs.nothing
class Table(Bias):
    def value(self, sums): return [1.0, 2.0]
class Needs(Bias):
    def __init__(self, bins): ...
class Wide(Bias):
    def sums(self, outputs, y): return outputs.sum(0)
    def value(self, sums): return sums.sum()
class Never(Bias):
    def value(self, sums): return 1 / 0
"""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("metrics")
    (path / "mine_metric.py").write_text(CODE)
    with imported_from(path):
        yield path


RNG = np.random.default_rng(3)
LOGITS = torch.from_numpy(RNG.normal(0, 2, (300, 4)).astype(np.float32))
CLASSES = torch.from_numpy(RNG.integers(0, 4, 300))


def ece() -> float:
    """The definition, over all examples at once."""
    z = LOGITS.double().numpy()
    e = np.exp(z - z.max(1, keepdims=True))
    p = (e / e.sum(1, keepdims=True)).max(1)
    right, total = (z.argmax(1) == CLASSES.numpy()), 0.0
    for i in range(10):
        here = (p >= i / 10) & (p < (i + 1) / 10)
        if here.any():
            total += here.mean() * abs(right[here].mean() - p[here].mean())
    return total


@pytest.mark.parametrize("parts", [1, 2, 60])
def test_it_is_that_of_the_pooled_outputs_however_they_are_split(parts: int) -> None:
    """Means of the clients' values, or sums that merge as float32, give another number."""
    measures = Measures("classification", ("mine_metric:Ece", "accuracy"), 4)
    rows = np.array_split(np.random.default_rng(parts).permutation(300), parts)
    pieces = [measures.sums(LOGITS[r], CLASSES[r], len(r)) for r in rows]
    sums = added(pieces)
    assert {k: (a.shape, a.dtype) for k, a in sums.items()} == {
        k: (a.shape, a.dtype) for k, a in measures.like.items()
    }
    value = measures.values(sums)["mine_metric:Ece"]
    assert value == pytest.approx(ece(), abs=1e-12)
    assert measures.values(added(pieces[::-1]))["mine_metric:Ece"] == value  # to the last bit
    record = measures.record(sums)
    assert measures.of_record(record)["mine_metric:Ece"] == value


def test_floats_add_up_exactly_and_what_does_not_count_is_left_out() -> None:
    """1e16 + 1 - 1e16 is 0 in float64, and NaN targets are padding."""
    measures = Measures("regression", ("mine_metric:Bias",), 1)
    far = torch.tensor([1e16, 1.0, -1e16, 7.0], dtype=torch.float64)
    y = torch.tensor([0.0, 0.0, 0.0, float("nan")])
    sums = added([measures.sums(far[i : i + 1], y[i : i + 1], 1) for i in range(4)])
    assert measures.values(sums)["mine_metric:Bias"] == 1.0


def test_a_text_gives_its_positions_without_padding() -> None:
    measures = Measures("language", ("mine_metric:Ece",), 4)
    text = LOGITS[:6].view(2, 3, 4).transpose(1, 2)
    y = CLASSES[:6].view(2, 3).clone()
    y[1, 1:] = -100
    sums = measures.sums(text, y, 4)
    assert int(sums["mine_metric:Ece/count"].sum()) == 4


def test_what_is_not_defined_or_diverged_has_no_value() -> None:
    measures = Measures("regression", ("mine_metric:Never", "mine_metric:Bias"), 1)
    sums = measures.sums(torch.tensor([float("inf")]), torch.zeros(1), 1)
    assert measures.values(sums) == {"mine_metric:Never": None, "mine_metric:Bias": None}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("squares", "has no sums and no value"),
        ("Rows", r"same names, shapes and kinds .* floats \[1\]; got floats \[3\]"),
        ("Words", "integers or floats, an array or a dict of some; got <U1"),
        ("Fails", r"sums\(outputs, y\) failed on 1 examples: AttributeError: .*mine_metric.py, line"),
        ("Table", r"value\(sums\) to return a number; got list"),
        ("Needs", "cannot be made without arguments: TypeError"),
        ("Absent", "a name in .*mine_metric.py"),
    ],
)
def test_what_cannot_be_added_up_is_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f'(?s)"metrics": .*{words}'):
        Measures("regression", (f"mine_metric:{name}",), 1)


def test_the_key_is_checked_before_data_are_read() -> None:
    with pytest.raises(ConfigError, match='"metrics": expected one of our names or'):
        check_names(read_config({"metrics": "f1-macro,mine_metric:"}))
    assert references_in({"metrics": "accuracy, mine_metric:Ece"}) == ("mine_metric:Ece",)


def test_nodes_compare_its_code_and_hear_of_a_form_that_depends_on_the_data(folder: Path) -> None:
    """A metric that only real outputs break must fail at registration, not in each evaluation."""
    write_owners(folder / "checked.npz")
    keys = {"cache-dir": str(folder / "cache"), "state-dir": str(folder / "state")}
    made = owners_config(folder / "checked.npz", metrics="mine_metric:Ece", **keys)
    node = open_node(read_config(made), {})
    assert registration_of(node).code.items() >= code_of(["mine_metric:Ece"]).items()
    wide = {"task": "reconstruction", "model": "autoencoder", "metrics": "mine_metric:Wide"}
    write_owners(folder / "five.npz", features=5)
    made = owners_config(folder / "five.npz", **wide, **keys)
    with pytest.raises(ConfigError, match=r'"mine_metric:Wide": .* floats \[4\]; got .*floats \[5\]'):
        registration_of(open_node(read_config(made), {}))


def test_a_run_measures_it_alike_on_any_number_of_nodes(folder: Path) -> None:
    """Names or shapes that differ between node and server would quarantine every evaluation."""
    write_owners(folder / "run.npz")
    found = []
    for nodes in (1, 3, 5):
        keys = owners_config(
            folder / "run.npz", metrics="mine_metric:Ece,confusion", fraction_evaluate=1.0,
            local_test_fraction=0.3, num_server_rounds=2, cache_dir=str(folder / "cache"),
            state_dir=str(folder / f"state{nodes}"),
        )  # fmt: skip
        row = play(keys, nodes=nodes, seed=nodes).rows[-1]
        assert row["quarantined"] == []
        found.append(row["client_mine_metric:Ece"])
    assert found[0] == found[1] == found[2]
    assert 0 < found[0] < 1
