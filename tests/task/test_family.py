"""Which units a model has, which of them a client keeps, and what its smaller model computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from client_app.training.choice import program_of
from client_app.training.stacked import Perceptron
from task.errors import ConfigError
from task.models import MODELS, build_model
from task.models.family import Axis, Levels, SubModel, UnitGroup, Units, Widths, form_of
from task.models.units import smaller, units_of
from task.numerics.arrays import Arrays, state_of

SHAPES = {"char-lstm": (8,)}
# Of the others no layer is read unit by unit by the next one alone.
DROPPABLE = sorted(
    MODELS.keys() - {"char-lstm", "cvae", "fasttext", "logistic", "resnet18", "resnet18-bn", "tf-cnn", "vae"}
)


def dropout(units: Units, width: float, seed: int) -> Widths:
    return Widths(units, Levels((width,)), "random", seed)


def part_of(units: Units, *kept: list[int]) -> SubModel:
    return SubModel(units, tuple(np.array(k) for k in kept))


def numbered(model: nn.Module) -> Arrays:
    """Return the model's arrays with each entry's own place as its value."""
    return {n: np.arange(a.size, dtype=a.dtype).reshape(a.shape) for n, a in state_of(model).items()}


# ------------------------------------------------------------------------------------- index maps


def test_two_layers_by_hand() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    units = units_of(model, (1, 1, 2))
    assert units.groups == (UnitGroup(3),)
    assert units.axes == {"1.weight": (Axis(0),), "1.bias": (Axis(0),), "3.weight": (None, Axis(0))}
    taken = part_of(units, [0, 2]).take(numbered(model))
    assert {name: a.tolist() for name, a in taken.items()} == {
        "1.weight": [[0, 1], [4, 5]],  # of [[0, 1], [2, 3], [4, 5]]
        "1.bias": [0, 2],
        "3.weight": [[0, 2], [3, 5]],  # of [[0, 1, 2], [3, 4, 5]]
        "3.bias": [0, 1],
    }


def test_convolution_norm_and_flatten_by_hand() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 1), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(2 * 4, 2), nn.ReLU(), nn.Linear(2, 5),
    )  # fmt: skip
    units = units_of(model, (1, 5, 5))  # 4 x 4 after the first convolution, 2 x 2 after pooling
    assert units.groups == (UnitGroup(3), UnitGroup(2), UnitGroup(2))
    taken = part_of(units, [1, 2], [1], [0]).take(numbered(model))
    assert taken["0.weight"].tolist() == [[[[4, 5], [6, 7]]], [[[8, 9], [10, 11]]]]
    for name in ("0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"):
        assert taken[name].tolist() == [1, 2], name
    assert taken["1.num_batches_tracked"].shape == ()
    assert taken["3.weight"].reshape(-1).tolist() == [4, 5]  # filter 1 of [[0, 1, 2], [3, 4, 5]]
    assert taken["3.bias"].tolist() == [1]
    assert taken["6.weight"].tolist() == [[4, 5, 6, 7]]  # the four pixels of channel 1, for unit 0
    assert taken["8.weight"].reshape(-1).tolist() == [0, 2, 4, 6, 8]
    assert taken["8.bias"].tolist() == [0, 1, 2, 3, 4]  # the outputs are whole


def test_layers_in_chains_within_a_chain_have_their_paths() -> None:
    inner = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
    units = units_of(nn.Sequential(nn.Flatten(), inner, nn.Linear(6, 2)), (4,))
    assert set(units.axes) == {"1.0.weight", "1.0.bias", "2.weight"}


def test_group_normalisation_keeps_as_many_of_each_of_its_groups() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    units = units_of(model, (1, 1, 1))
    assert units.groups == (UnitGroup(8, blocks=2),)
    family = dropout(units, 0.5, 1)
    for client in "abcdefgh":
        (kept,) = family.of(1, client).kept
        assert sorted(kept) == kept.tolist()
        assert (np.sum(kept < 4), np.sum(kept >= 4)) == (2, 2)
    assert smaller(model, family.first())[1].num_groups == 2


UNKNOWN = {
    "recurrent": nn.LSTM(6, 6),
    "over all units": nn.LayerNorm(6),
    "reparametrised": torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
}


@pytest.mark.parametrize("layer", UNKNOWN.values(), ids=UNKNOWN)
def test_what_an_unknown_layer_reads_and_writes_stays_whole(layer: nn.Module) -> None:
    before = (nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6))
    after = (nn.Flatten(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2))
    units = units_of(nn.Sequential(*before, layer, *after), (4,))
    assert units.groups == (UnitGroup(5), UnitGroup(3))
    assert units.axes["3.weight"] == (None, Axis(0))  # its outputs go into the layer
    assert units.axes["6.weight"] == (Axis(1),)  # its inputs come from there
    assert not [name for name in units.axes if name.startswith("4.")]


def test_a_dense_layer_over_the_pixels_of_a_row_is_not_read_by_channel() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.Linear(4, 4), nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 2)
    )
    assert units_of(model, (1, 4, 4)).groups == (UnitGroup(3),)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(x + self.a(x))
        return out


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Residual(), "chain of layers .* got Residual"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "hidden layers"),
        (nn.Sequential(nn.Flatten(), nn.LSTM(4, 4), nn.Linear(4, 2)), "hidden layers"),
        (nn.Sequential(nn.Flatten(), *[nn.Linear(4, 4)] * 2, nn.Linear(4, 4)), "hidden layers"),
    ],
)
def test_a_model_without_such_units_is_refused(model: nn.Module, why: str) -> None:
    with pytest.raises(ConfigError, match=f'"dropout-width": expected a model .*{why}'):
        units_of(model, (4,))


# ------------------------------------------------------------------------------------------ draws


def test_the_draw_is_a_fixed_number_and_depends_on_seed_round_and_client_alone() -> None:
    units = Units((UnitGroup(10), UnitGroup(7), UnitGroup(1)), {})
    family = dropout(units, 0.5, 3)
    kept = family.of(2, "anna").kept
    assert [len(k) for k in kept] == [5, 3, 1]  # floor(3.5) = 3; never none
    assert all((np.diff(k) > 0).all() for k in kept)
    same = dropout(units, 0.5, 3).of(2, "anna").kept
    assert all((a == b).all() for a, b in zip(kept, same, strict=True))
    others = family.of(3, "anna"), family.of(2, "ben"), dropout(units, 0.5, 4).of(2, "anna")
    for other in others:
        assert any((a != b).any() for a, b in zip(kept, other.kept, strict=True))


@pytest.mark.parametrize(
    ("width", "size", "count"), [(0.29, 100, 29), (0.7, 10, 7), (1.0, 9, 9), (0.01, 9, 1)]
)
def test_the_count_is_the_floor_of_the_exact_product(width: float, size: int, count: int) -> None:
    assert UnitGroup(size).count(width) == count


def test_every_unit_is_kept_equally_often() -> None:
    family = dropout(Units((UnitGroup(8),), {}), 0.25, 1)
    drawn = np.concatenate([family.of(t, "anna").kept[0] for t in range(1, 4001)])
    counts = np.bincount(drawn, minlength=8)  # 1000 of 4000 each, standard deviation 27
    assert np.abs(counts - 1000).max() < 5 * 27.4


# ----------------------------------------------------------------------------------- smaller models


def built(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    shape = (1, 28, 28)
    return build_model(name, shape, 10, 1), shape


@pytest.mark.parametrize("name", DROPPABLE)
def test_a_smaller_model_has_the_form_of_its_arrays(name: str) -> None:
    model, shape = built(name)
    family = dropout(units_of(model, shape), 0.6, 1)
    arrays, small = state_of(model), state_of(smaller(model, family.first()))
    for form in (family.of(1, "anna").take(arrays), form_of(family.first(), arrays)):
        assert {n: (a.shape, a.dtype) for n, a in form.items()} == {
            n: (a.shape, a.dtype) for n, a in small.items()
        }
    assert sum(a.size for a in small.values()) < 0.65 * sum(a.size for a in arrays.values())


@pytest.mark.parametrize("name", DROPPABLE)
def test_it_computes_what_the_whole_one_does_without_the_other_units(name: str) -> None:
    """Units are cut off the whole model by zeros in the columns that read them."""
    model, shape = built(name)
    model.eval()
    family = dropout(units_of(model, shape), 0.6, 1)
    part, arrays = family.of(1, "anna"), state_of(model)
    small = smaller(model, part)
    cut = {n: a.copy() for n, a in arrays.items()}
    for tensor, axes in family.units.axes.items():
        if len(axes) > 1 and axes[1]:
            gone = np.ones(cut[tensor].shape[1], bool)
            gone[np.ravel(part.index(tensor)[1])] = False
            cut[tensor][:, gone] = 0
    whole = build_model(name, shape, 10, 1).eval()
    whole.load_state_dict({n: torch.from_numpy(a) for n, a in cut.items()})
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(4, *shape)).astype(np.float32))
    with torch.no_grad():
        torch.testing.assert_close(small(x), whole(x), rtol=1e-4, atol=1e-6)
        assert not torch.allclose(small(x), model(x), atol=1e-3)


def test_a_smaller_perceptron_trains_as_a_stack() -> None:
    model, shape = built("2nn")
    small = smaller(model, dropout(units_of(model, shape), 0.5, 1).first())
    program, size = program_of(small, 0)
    assert isinstance(program, Perceptron)
    assert size > 1
    assert [tuple(p.shape) for p in small.parameters()] == [
        (100, 784),
        (100,),
        (100, 100),
        (100,),
        (10, 100),
        (10,),
    ]
    odd = smaller(model, dropout(units_of(model, shape), 0.75, 1).first())  # 150 units: no multiple of 4
    assert [type(program_of(odd, 0)[0]), program_of(odd, 0)[1]] == [Perceptron, 1]


# ------------------------------------------------------------------------------------------- widths


def of_width(units: Units, scheme: str, *widths: float) -> Widths:
    return Widths(units, Levels(widths, (1 / len(widths),) * len(widths)), scheme)


def test_nested_units_are_the_first_and_rolling_ones_move_on_by_one_a_round() -> None:
    units = Units((UnitGroup(5), UnitGroup(8, blocks=2)), {})
    nested, rolling = of_width(units, "nested", 0.5), of_width(units, "rolling", 0.5)
    assert [k.tolist() for k in nested.of(7, "anna").kept] == [[0, 1, 2], [0, 1, 4, 5]]  # ceil(2.5) = 3
    assert [k.tolist() for k in rolling.of(1, "anna").kept] == [[0, 1, 2], [0, 1, 4, 5]]
    assert [k.tolist() for k in rolling.of(2, "ben").kept] == [[1, 2, 3], [1, 2, 5, 6]]
    assert [k.tolist() for k in rolling.of(5, "ben").kept] == [[0, 1, 4], [0, 1, 4, 5]]


def test_the_parameters_of_heterofls_levels() -> None:
    """Widths 200, 100, 50, 25 and 13 of both hidden layers: 784 u + u + u^2 + u + 10 u + 10."""
    model, shape = built("2nn")
    family = of_width(units_of(model, shape), "nested", 1.0, 0.5, 0.25, 0.125, 0.0625)
    sizes = [
        sum(p.numel() for p in smaller(model, family.sized(r)).parameters()) for r in family.levels.values
    ]
    assert sizes == [199_210, 89_610, 42_310, 20_535, 10_527]


def test_levels_are_dealt_by_name_and_seed_in_their_shares() -> None:
    names = [f"client-{i}" for i in range(4000)]
    levels = Levels((1.0, 0.5, 0.25), (0.2, 0.3, 0.5), 1)
    dealt = [levels.of(name) for name in names]
    for width, share in zip(levels.values, levels.shares, strict=True):
        assert abs(dealt.count(width) / 4000 - share) < 0.04  # five standard deviations of 0.5
    assert dealt == [levels.of(name) for name in names]
    assert dealt != [Levels(levels.values, levels.shares, 2).of(name) for name in names]
    assert {Levels((1.0, 0.5), (0.0, 1.0), 1).of(name) for name in names[:99]} == {0.5}


def test_what_a_node_says_goes_first_if_the_run_has_it() -> None:
    said = {"anna": 0.5, "ben": 0.3, "cleo": 0.0}
    levels = Levels((1.0, 0.5), (1.0, 0.0), 1, said.__getitem__)
    assert [levels.of(name) for name in said] == [0.5, 1.0, 1.0]
