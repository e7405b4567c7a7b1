"""The ensemble of local models: members as in local training only, and their vote by hand and in runs."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.data.node import open_node
from client_app.solvers import SOLVERS
from client_app.work import train_clients
from task.config.knobs import Config
from task.errors import ConfigError
from task.models import build_model
from task.numerics import seeds
from task.numerics.arrays import Arrays, sha256, state_of
from task.resolve.contract import contract_of
from task.resolve.read import read_config
from task.resolve.validate import check_names
from task.tasks.kinds import CLASSIFICATION
from task.wire import messages as wire
from tests.reference import mlp
from tests.strategies.test_models import held
from tests.support.models import Bytes, Noisy, OneNumber, sigmoid
from tests.support.personal import case_of, close, keys_of
from tests.support.rules import w


def measure(model: nn.Module, members: dict[str, Arrays], x: torch.Tensor, y: torch.Tensor) -> Any:
    solver = SOLVERS["ensemble"](Config(), {}, {}, [{}], [{"models": members}])
    found, _ = solver.measure(model, x, y, CLASSIFICATION)
    return found["loss"], found["accuracy"], found["num-examples"]


def test_the_vote_by_hand() -> None:
    """Members of 3, -1 and -1 on x = 1 and x = -1, both of class 1: p = (s(3) + 2 s(-1))/3 and so on.

    The majority of members says 0 on x = 1, but the mean probability of 1 is 0.497.
    """
    members = {"a": w(3.0), "b": w(-1.0), "c": w(-1.0)}
    x, y = torch.tensor([1.0, -1.0]), torch.tensor([1, 1])
    p = [(sigmoid(3 * s) + 2 * sigmoid(-1 * s)) / 3 for s in (1, -1)]
    loss = -(math.log(p[0]) + math.log(p[1])) / 2
    assert measure(OneNumber(), members, x, y) == (pytest.approx(loss, rel=1e-6), 0.5, 2)
    # with 4 in place of 3 it is 0.507: one sure member outvotes two
    right = [measure(OneNumber(), members | {"a": w(a)}, x[:1], y[:1])[1] for a in (3.0, 4.0)]
    assert right == [0.0, 1.0]


def test_a_member_that_is_sure_of_the_wrong_class_costs_a_finite_loss() -> None:
    """p = (1 + e^-2000)/2, of which e^-2000 is 0 in float64; alone it is the loss of 2000."""
    x, y = torch.tensor([1.0]), torch.tensor([1])
    assert measure(OneNumber(), {"a": w(2000.0), "b": w(-2000.0)}, x, y)[0] == pytest.approx(math.log(2))
    assert measure(OneNumber(), {"b": w(-2000.0)}, x, y)[0] == pytest.approx(2000)


def test_while_there_are_no_members_the_clients_own_model_is_measured() -> None:
    x, y = torch.tensor([1.0]), torch.tensor([1])
    assert measure(OneNumber(2.0), {}, x, y)[0] == pytest.approx(-math.log(sigmoid(2.0)))


def test_text_is_voted_on_byte_by_byte_without_padding() -> None:
    x = torch.tensor([[0, 1, 2], [3, 4, 0]])
    y = torch.tensor([[1, 2, -100], [4, -100, -100]])
    one, two = (Bytes(), Bytes())
    with torch.no_grad():
        two.out.bias += torch.arange(5.0)
        p = (torch.softmax(one(x).double(), 1) + torch.softmax(two(x).double(), 1)) / 2
    at = [(0, 0, 1), (0, 1, 2), (1, 0, 4)]  # example, place, class
    loss = -sum(math.log(float(p[n, c, t])) for n, t, c in at) / 3
    right = sum(int(p[n, :, t].argmax()) == c for n, t, c in at) / 3
    members = {"a": state_of(one), "b": state_of(two)}
    assert measure(Bytes(), members, x, y) == (pytest.approx(loss, rel=1e-6), pytest.approx(right), 3)


def test_members_vote_as_in_evaluation_and_many_examples_in_parts() -> None:
    """No dropout, running statistics instead of the batch's, and the model is left in its mode."""
    torch.manual_seed(0)
    model, x = Noisy().train(), torch.randn(600, 3)
    y = torch.arange(600) % 2
    once = measure(model, {"a": state_of(model)}, x, y)
    assert model.training
    with torch.no_grad():
        log_p = torch.log_softmax(model.eval()(x).double(), 1)
    assert once[0] == pytest.approx(float(-log_p[torch.arange(600), y].mean()), rel=1e-6)
    assert once[2] == 600


def test_members_are_those_of_local_training_and_everybody_is_judged_by_all_of_them(tmp_path: Path) -> None:
    more: dict[str, Any] = {"fraction_train": 0.4, "nodes": 2, "momentum": 0.5}
    case, alone = (case_of(tmp_path, name, **more) for name in ("ensemble", "local-only"))
    assert {c: sha256(a) for c, a in case.kept().items()} == {c: sha256(a) for c, a in alone.kept().items()}
    assert {c: sha256(a) for c, a in held(case.played, 3).items()} == {
        c: sha256(a) for c, a in case.kept().items()
    }
    assert list(case.lines("train")) == list(alone.lines("train"))  # with test-loss, test-accuracy
    sizes = [len(held(case.played, t)) for t in (1, 2, 3)]
    assert sizes[0] == 2 < sizes[2]
    found = list(case.lines("evaluate"))
    assert len(found) == 3 * 5
    for t, client, got in found:
        x, y = case.test[client]
        p = np.zeros((len(y), 3))
        for member in held(case.played, t).values():
            scores = mlp.features(mlp.double(member), x) @ member["3.weight"].T + member["3.bias"]
            e = np.exp(scores)
            p = p + e / e.sum(axis=1, keepdims=True) / sizes[t - 1]
        loss, right = -np.log(p[np.arange(len(y)), y]).mean(), (p.argmax(1) == y).mean()
        assert (got["loss"], got["accuracy"]) == pytest.approx((loss, right), rel=1e-5)


SITE: dict[str, Any] = {"ensemble.of": "site"}


def test_members_of_a_site_have_all_data_and_an_initial_model_of_their_own(tmp_path: Path) -> None:
    """Full batches, so that each member is so many steps of gradient descent on the data of all clients."""
    case = case_of(tmp_path, "ensemble", nodes=2, batch_size=0, lr_decay=1.0, fraction_train=0.4, **SITE)
    x, y = (torch.from_numpy(np.concatenate([pair[i] for pair in case.train.values()])) for i in (0, 1))
    times = Counter(client for cohort in case.cohorts for client in cohort)
    members = held(case.played, 3)
    assert set(members) == set(times)
    assert len(members) > 2
    for client, member in members.items():
        seed = seeds.seed_for(case.keys["seed"], "model", client=client)
        model = build_model("mlp", tuple(x.shape[1:]), 3, seed)
        for _ in range(times[client] * case.keys["local-epochs"]):
            loss = nn.functional.cross_entropy(model(x), y)
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradient, strict=True):
                    p -= case.keys["learning-rate"] * g
        assert close(member, state_of(model), 1e-5), client
    assert {m["examples"] for _, _, m in case.lines("train")} == {len(y)}


def test_members_of_a_site_are_the_same_however_many_nodes_train_them(tmp_path: Path) -> None:
    """They see one data set in orders of their own, and what a node keeps of a member is that member."""
    one, three = (case_of(tmp_path, "ensemble", nodes=n, fraction_train=1.0, **SITE) for n in (1, 3))
    assert one.played.rows[-1]["model_sha256"] == three.played.rows[-1]["model_sha256"]
    kept = {c: sha256(a) for c, a in three.kept().items()}
    assert kept == {c: sha256(a) for c, a in held(one.played, 3).items()}
    assert len(set(kept.values())) == 5


def test_a_node_that_brings_its_own_data_is_a_site(tmp_path: Path) -> None:
    """It has nobody else's data, so its member learns from its own, where `centralised` is refused."""
    keys = keys_of(tmp_path, "ensemble", num_classes=3, stack=1, **SITE)
    own = {"client-name": "anna", "data-path": str(tmp_path / "owners.npz")}
    node = open_node(read_config(keys), own)
    order = wire.TrainOrder(1, {}, {}, ("anna",), (1,))
    ((client, outcome),) = train_clients(node, contract_of(node.config), order)
    assert isinstance(outcome, wire.ClientUpdate)
    assert (client, outcome.scalars["num-examples"]) == ("anna", len(node.clients.train(0)))


def test_no_clients_can_be_held_out_of_a_site() -> None:
    """Their data would be trained on all the same."""
    keys = {"algorithm": "ensemble", "fraction-heldout": 0.2}
    check_names(read_config(keys))
    with pytest.raises(ConfigError, match="it trains on all clients' data"):
        check_names(read_config(keys | SITE))


def test_only_members_go_down_and_only_to_be_evaluated_once_a_node(tmp_path: Path) -> None:
    case = case_of(tmp_path, "ensemble", nodes=2)
    assert all(not m.content.array_records for m in case.played.messages("train"))
    messages = case.played.messages("evaluate")
    assert len(messages) == 3 * 2
    for m in messages:
        members = held(case.played, int(m.metadata.group_id))
        records = m.content.array_records
        assert set(records) == {f"models.{c}" for c in members}
        config = m.content.config_records["config"]
        for client in config["clients"]:  # type: ignore[union-attr]
            assert config[f"models:{client}"] == sorted(members)
        for client, member in members.items():
            got = {n: a.numpy() for n, a in records[f"models.{client}"].items()}
            assert sha256(got) == sha256(member)
