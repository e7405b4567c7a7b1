"""Low-rank adapters: means of products and of factors by hand-made numbers, names, ranks and the first A."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from server_app.run.peft_folder import FOLDER, begin, end, peft_name
from strategies.stages.lora import averaged
from task.adapters.means import norm_mean, product_mean, product_norm
from task.adapters.names import Factors, pairs_of
from task.errors import ConfigError
from task.models.family import Levels, SubModels, Widths
from task.models.lora import Adapters
from task.models.model_file import load
from task.models.units import smaller, units_of

A, B = "x.lora_A.default.weight", "x.lora_B.default.weight"


def dense(a: list[np.ndarray], b: list[np.ndarray], weights: list[float]) -> np.ndarray:
    """The slow reference: sum_i p_i B_i A_i, formed."""
    whole = sum(weights)
    return np.asarray(sum(w / whole * (y @ x) for x, y, w in zip(a, b, weights, strict=True)))


def test_the_mean_of_products_is_not_the_product_of_means() -> None:
    a, b = [np.diag([1.0, 0]), np.diag([0, 1.0])], [np.diag([3.0, 0]), np.diag([0, 1.0])]
    assert np.allclose(np.mean(b, 0) @ np.mean(a, 0), [[0.75, 0], [0, 0.25]])
    one = [np.array([[1.0, 0]]), np.array([[0, 1.0]])], [np.array([[3.0], [0]]), np.array([[0], [1.0]])]
    # means of these factors: [[.75, .75], [.25, .25]]; of the products: diag(1.5, .5)
    assert np.allclose(np.mean(one[1], 0) @ np.mean(one[0], 0), [[0.75, 0.75], [0.25, 0.25]])
    made_a, made_b, lost = product_mean(*one, [1, 1], 1)
    assert np.allclose(made_b @ made_a, np.diag([1.5, 0]), atol=1e-12)
    assert lost == pytest.approx(0.5 / np.hypot(1.5, 0.5))  # the dropped singular value over the norm
    made_a, made_b, lost = product_mean(a, b, [1, 1], 2)
    assert np.allclose(made_b @ made_a, np.diag([1.5, 0.5]), atol=1e-12)
    assert lost == 0.0
    assert made_b[:, 0].max() > 0 > -1e-12


@pytest.mark.parametrize("rank", [2, 8, 14])
def test_it_is_the_truncated_svd_of_the_dense_mean(rank: int) -> None:
    """For ranks that differ, too; without ever forming d x k numbers (d and k are small here)."""
    rng, ranks, weights = np.random.default_rng(2), (2, 4, 8), [5, 3, 2]
    a, b = [rng.normal(size=(r, 30)) for r in ranks], [rng.normal(size=(40, r)) for r in ranks]
    whole = dense(a, b, weights)
    s = np.linalg.svd(whole, compute_uv=False)
    made_a, made_b, lost = product_mean(a, b, weights, rank)
    assert made_a.shape == (rank, 30)
    assert np.allclose(np.linalg.svd(made_b @ made_a, compute_uv=False)[:rank], s[:rank], atol=1e-10)
    left = np.sqrt(np.sum(s[rank:] ** 2))
    assert np.linalg.norm(whole - made_b @ made_a) == pytest.approx(left, abs=1e-10)
    assert lost == pytest.approx(left / np.linalg.norm(whole), abs=1e-12)
    if rank == 14:  # all that the stacks hold: exact; scaling both stacks by p is not
        assert np.allclose(made_b @ made_a, whole, atol=1e-12)
        p = np.array(weights) / 10
        twice = [x * w for x, w in zip(a, p, strict=True)], [y * w for y, w in zip(b, p, strict=True)]
        assert np.linalg.norm(dense(*twice, [1, 1, 1]) * 3 - whole) > 0.1 * np.linalg.norm(whole)
    padded_a = [np.pad(x, ((0, 8 - len(x)), (0, 0))) for x in a]
    padded_b = [np.pad(y, ((0, 0), (0, 8 - y.shape[1]))) for y in b]
    again = product_mean(padded_a, padded_b, weights, rank)
    assert np.allclose(again[1] @ again[0], made_b @ made_a, atol=1e-10)


def test_a_direction_that_a_client_lacks_shrinks_by_its_share() -> None:
    """FlexLoRA's mean is over all clients. Rank 2 with singular values 3 and 2; one of two has rank 1: as
    nobody trains, the mean is 3, and 2 (1 - 1/2) = 1, then 1/2; with all at rank 2 nothing changes.
    """
    a, b = np.eye(2), np.diag([3.0, 2.0])
    part = [a, np.diag([1.0, 0])], [b, np.diag([3.0, 0])]
    made_a, made_b, _ = product_mean(*part, [1, 1], 2)
    assert np.allclose(made_b @ made_a, np.diag([3.0, 1.0]))
    again = product_mean(
        [made_a, np.diag([1.0, 0]) @ made_a], [made_b, made_b @ np.diag([1.0, 0])], [1, 1], 2
    )
    assert np.allclose(again[1] @ again[0], np.diag([3.0, 0.5]))
    whole = product_mean([a, a], [b, b], [1, 1], 2)
    assert np.allclose(whole[1] @ whole[0], b)


def test_without_an_update_the_mean_of_a_stays() -> None:
    a = [np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])]
    made_a, made_b, lost = product_mean(a, [np.zeros((3, 1))] * 2, [3, 1], 1)
    assert made_a.tolist() == [[1.5, 2.5]]
    assert not made_b.any()
    assert lost == 0.0


def test_hetlora_weighs_padded_factors_by_norm() -> None:
    a = [np.array([[1.0, 1.0], [0, 0]]), np.eye(2)]
    b = [np.array([[2.0, 0], [0, 0]]), np.eye(2)]
    assert product_norm(a[0], b[0]) == pytest.approx(2 * np.sqrt(2))
    made_a, made_b, share = norm_mean(a, b, [7, 1])
    assert share == pytest.approx([2 / 3, 1 / 3])
    assert np.allclose(made_b, [[5 / 3, 0], [0, 1 / 3]])
    assert np.allclose(made_a, [[1, 2 / 3], [0, 1 / 3]])
    assert norm_mean(a, [np.zeros((2, 2))] * 2, [3, 1])[2].tolist() == [0.75, 0.25]


def test_other_tensors_become_their_exact_mean() -> None:
    stack = {
        A: np.array([[[1.0, 0]], [[0, 1.0]]], np.float32),
        B: np.array([[[3.0], [0]], [[0], [1.0]]], np.float32),
        "head": np.array([[1.0], [5.0]], np.float32),
    }
    made, left_out = averaged(stack, np.array([3, 1]), (Factors(A, B),), "product")
    assert list(made) == [A, B, "head"]
    assert made["head"].tolist() == [2.0]
    assert np.allclose(made[B] @ made[A], np.diag([2.25, 0]), atol=1e-6)
    assert left_out == pytest.approx(0.25 / np.hypot(2.25, 0.25))
    made, none = averaged(stack, np.array([3, 1]), (Factors(A, B),), "norms")
    assert none is None
    assert made[B].ravel() == pytest.approx([3 * 0.75, 0.25])


def test_factors_are_found_by_name() -> None:
    names = [A, B, "e.lora_embedding_A.default", "e.lora_embedding_B.default", "y.lora_A.default.weight", "w"]
    found = pairs_of(names)
    assert found == (Factors(A, B), Factors("e.lora_embedding_A.default", "e.lora_embedding_B.default"))
    assert peft_name("m.base_model.model.h.lora_embedding_A.default") == "base_model.model.h.lora_embedding_A"
    assert peft_name("base_model.model.norm.weight") == ""
    assert peft_name("head.weight") == ""


class Net(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 5)
        self.head = nn.Linear(5, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.relu(self.hidden(x)))
        return out


def adapted(outputs: int = 3, rank: int = 8, seed: int = 1, **more: object) -> nn.Module:
    values = {"alpha": 0.0, "targets": ("hidden",), "modules": ("head",), "dropout": 0.0, **more}
    return Adapters(rank=rank, seed=seed, **values).add(Net(outputs))  # type: ignore[arg-type]


def factor(model: nn.Module, which: str) -> torch.Tensor:
    return next(p for n, p in model.named_parameters() if f"lora_{which}." in n)


def test_every_process_draws_one_a() -> None:
    """Whatever it drew before; and of a smaller rank it is the first rows."""
    torch.manual_seed(5)
    first = factor(adapted(), "A")
    torch.manual_seed(6)
    assert torch.equal(factor(adapted(outputs=2), "A"), first)
    assert torch.equal(factor(adapted(rank=4), "A"), first[:4])
    assert not torch.equal(factor(adapted(seed=2), "A"), first)
    assert first.abs().max() <= 6**-0.5
    assert not factor(adapted(), "B").any()
    trained = {n for n, p in adapted().named_parameters() if p.requires_grad}
    assert len(trained) == 4  # both factors, and the weight and bias of the head


def test_adapters_are_added_to_the_weights_of_a_file_of_the_bare_model(tmp_path: Path) -> None:
    torch.manual_seed(7)
    bare, wrapped, x = Net(3), adapted(), torch.randn(4, 6)
    torch.save(bare.state_dict(), tmp_path / "bare.pt")
    shared = {n: t.detach().numpy() for n, t in wrapped.named_parameters()}
    arrays, loaded = load("key", str(tmp_path / "bare.pt"), shared, (), strict=True)
    wrapped.load_state_dict({n: torch.from_numpy(a) for n, a in arrays.items()})
    assert torch.equal(wrapped(x), bare(x))
    assert len(loaded.tensors) == 6  # the head's are there twice
    assert not loaded.misfits()
    torch.save({**bare.state_dict(), "more": torch.ones(1)}, tmp_path / "more.pt")
    with pytest.raises(ConfigError, match="unexpected: more"):
        load("key", str(tmp_path / "more.pt"), shared, (), strict=True)
    torch.save({"hidden.weight": bare.hidden.weight}, tmp_path / "less.pt")
    with pytest.raises(ConfigError, match=r"missing: base_model\.model\.hidden\.base_layer\.bias"):
        load("key", str(tmp_path / "less.pt"), shared, (), strict=True)


def test_layers_that_are_not_there_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r'"lora.target-modules".*got \'hid\'.*hidden'):
        adapted(targets=("hid",))
    with pytest.raises(ConfigError, match=r'"lora.modules-to-save"'):
        adapted(modules=("classifier",))


class Head(nn.Module):
    """Layers whose names are ends of others', and of those of peft's own modules."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.about = nn.Linear(4, 3), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.about(x))
        return found


class Body(nn.Module):
    """Two layers, and such a head."""

    def __init__(self, name: str = "head") -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
        self.name = name
        self.add_module(name, Head() if name == "head" else nn.Linear(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self, self.name)(self.body(x))
        return found


@pytest.mark.parametrize("modules", [("out",), ("head.out",), ("body.2", "out")])
def test_a_module_is_saved_whatever_peft_calls_its_own(modules: tuple[str, ...], tmp_path: Path) -> None:
    """Those named and no others; and peft reads the folder of the run."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    base = Body()
    made = Adapters(2, 0.0, ("body.0",), modules, 0.1, 1).add(copy.deepcopy(base))
    trained = {n: p for n, p in made.named_parameters() if p.requires_grad}
    saved = {n.partition(".modules_to_save")[0] for n in trained if ".modules_to_save." in n}
    assert saved == {f"base_model.model.{n if '.' in n else 'head.out'}" for n in modules}
    assert {n for n in trained if "lora_" in n} == {
        f"base_model.model.body.0.lora_{which}.default.weight" for which in "AB"
    }
    with torch.no_grad():
        for number, p in enumerate(trained.values()):
            p += 0.1 * number + 0.1
    begin(tmp_path, made)
    assert not (tmp_path / FOLDER).exists()  # of a run that fails, peft could not read it
    end(tmp_path, {n: p.detach().numpy() for n, p in trained.items()})
    read = peft.PeftModel.from_pretrained(base, str(tmp_path / FOLDER)).eval()
    x = torch.ones(2, 6)
    assert torch.equal(read(x), made.eval()(x))


@pytest.mark.parametrize(("name", "own"), [("out", "lora_dropout"), ("A", "lora_A")])
def test_a_layer_that_peft_cannot_tell_from_its_own_is_refused(name: str, own: str) -> None:
    """The key is that of the layers to save, and peft's folder could not name it either."""
    message = rf'"lora.modules-to-save": .*got "{name}", in which "{own}" ends, too. Give the layer another'
    with pytest.raises(ConfigError, match=message):
        Adapters(2, 0.0, ("body.0",), (name,), 0.1, 1).add(Body(name))
    made = Adapters(2, 0.0, ("body.0",), (f"{name}_layer",), 0.1, 1).add(Body(f"{name}_layer"))
    assert any(f".{name}_layer.modules_to_save." in n for n, _ in made.named_parameters())


@pytest.mark.parametrize(
    ("more", "offered"),
    [
        ({}, "0, about, head, out"),  # not body, whose only layer with adapters is 2, nor the ReLU 1
        ({"out": nn.Linear(4, 3)}, "0, about, head, head.out"),  # peft takes lora_dropout for this "out"
        ({"listed": nn.ModuleList([nn.Linear(4, 4)])}, "0, about, head, out"),
    ],
)
def test_each_layer_that_a_refusal_offers_can_be_saved(more: dict[str, nn.Module], offered: str) -> None:
    model = Body()
    for name, module in more.items():
        model.add_module(name, module)
    with pytest.raises(ConfigError, match=rf"expected one of {offered}; got 'nothing'"):
        Adapters(2, 0.0, ("2",), ("nothing",), 0.1, 1).add(copy.deepcopy(model))
    for each in offered.split(", "):
        Adapters(2, 0.0, ("2",), (each,), 0.1, 1).add(copy.deepcopy(model))


def test_a_model_without_a_layer_that_can_be_saved_says_so() -> None:
    """All that gets no adapters is `out`, which peft takes for its lora_dropout."""
    model = nn.Sequential(OrderedDict(hidden=nn.Linear(6, 5), out=nn.Linear(5, 3)))
    with pytest.raises(
        ConfigError, match=r'expected "", as .* got "nothing"\. Layers .* such as "out_layer"'
    ):
        Adapters(2, 0.0, ("hidden",), ("nothing",), 0.1, 1).add(model)


def test_layers_that_do_not_go_together_are_refused_before_peft_does() -> None:
    both = r'"lora.target-modules", "lora.modules-to-save": .*got "0,2", all of it within "body"'
    with pytest.raises(ConfigError, match=both):
        Adapters(2, 0.0, ("0", "2"), ("body",), 0.1, 1).add(Body())
    with pytest.raises(
        ConfigError, match=r'^run-config key "lora.target-modules": .*of 0, 2, out, about; got ""'
    ):
        Adapters(2, 0.0, (), (), 0.1, 1).add(Body())


def test_a_client_of_fewer_ranks_has_the_first_rows_of_a_and_columns_of_b() -> None:
    model = adapted(rank=4)
    family = Widths(units_of(model, (6,)), Levels((1.0, 0.5)), "nested")
    small = smaller(model, family.sized(0.5))
    assert torch.equal(factor(small, "A"), factor(model, "A")[:2])
    assert factor(small, "B").shape == (5, 2)
    x = torch.ones(3, 6)
    assert torch.equal(small(x), model(x))  # B is 0
    names = dict(model.named_parameters())
    a_name, b_name = pairs_of(names)[0].a, pairs_of(names)[0].b
    whole = {n: names[n].detach().numpy() for n in (a_name, b_name)}
    parts = SubModels(family, 1, whole)
    assert parts.received("anyone")[a_name].shape in ((4, 6), (2, 6))
    assert family.sized(0.5).take(whole)[b_name].shape == (5, 2)


def test_a_model_whose_factors_do_not_fit_is_refused() -> None:
    model = adapted(rank=4)
    layer = next(m for n, m in model.named_modules() if n.endswith("lora_B.default"))
    layer.weight = nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(ConfigError, match="as many rows of A as columns of B"):
        units_of(model, (6,))
