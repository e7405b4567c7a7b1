"""A strategy's arguments: by name in its signature and in the stub for editors, checked, and used."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bouquet.strategies
from strategies import STRATEGIES, FedAvg, FedProx, FedYogi, Strategy, TrimmedMean
from task.config.algorithm_sections import FedProxConfig
from task.config.knobs import Config
from task.errors import ConfigError
from tests.pages import stub

ROOT = Path(__file__).resolve().parents[2]


def test_the_stub_is_what_the_catalogue_says() -> None:
    assert (ROOT / "strategies/__init__.pyi").read_text(encoding="utf-8") == stub(), "make docs"


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_signature_is_what_the_constructor_takes(name: str) -> None:
    """An argument that is shown and refused, or one that is taken and not shown; a default of its own."""
    made = STRATEGIES[name]
    named = list(inspect.signature(made).parameters.values())
    assert {p.kind for p in named} == {inspect.Parameter.KEYWORD_ONLY}
    assert made(**{p.name: p.default for p in named}).config == made().config
    for p in named:
        wrong: Any = 1 if isinstance(p.default, str) else "one"
        with pytest.raises(
            ConfigError, match=f"strategy argument '{p.name}': expected {p.annotation.__name__}"
        ):
            made(**{p.name: wrong})


def test_an_argument_is_the_algorithms_own_key() -> None:
    strategy = FedProx(mu=0.3, seed=7, min_replies=3)
    assert strategy.config.fedprox == FedProxConfig(mu=0.3)
    assert (strategy.config.seed, strategy.config.server.min_replies) == (7, 3)
    assert strategy.rule.initial_state({"w": np.zeros(1)}, ("w",)).mu == 0.3  # type: ignore[attr-defined]
    assert TrimmedMean(trim=0.2).config.robust.trim == 0.2
    assert FedYogi(beta2=0.5).config.fedopt.beta2 == 0.5
    given = Config(algorithm="fedprox", fedprox=FedProxConfig(mu=0.3, measure_gamma=True))
    assert FedProx(given, mu=0.5).config.fedprox == FedProxConfig(mu=0.5, measure_gamma=True)


@pytest.mark.parametrize(
    ("made", "arguments", "words"),
    [
        (FedProx, {"mu": -1}, r"argument 'mu': expected float >= 0 \(mu of .*; got -1"),
        (FedProx, {"mue": 1}, "argument 'mue': .*Did you mean \"mu\"?"),
        (FedAvg, {"mu": 1}, "argument 'mu': expected one of"),
        (FedProx, {"num_server_rounds": 5}, "argument 'num_server_rounds': got .*Expected one of .*, "),
        (FedAvg, {"fraction_train": 1.5}, "argument 'fraction_train': expected float >= 0 and <= 1"),
        (FedAvg, {"min_available_nodes": 2}, "'min_available_nodes': Flower's; expected min_nodes"),
        (FedAvg, {"min_train_nodes": 2}, "'min_train_nodes': Flower's; .* fraction_train.* min_replies"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    made: type[Strategy], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        made(**arguments)


def test_an_argument_without_its_name_is_refused() -> None:
    """It would be taken for the run's config."""
    with pytest.raises(ConfigError, match=r"fedprox: expected arguments by name, such as mu=...; got 0.5"):
        FedProx(0.5)  # type: ignore[misc]


def test_a_class_of_ones_own_has_its_own_signature() -> None:
    class Mine(FedProx):
        def __init__(self, strength: float) -> None:
            super().__init__(mu=strength)

    assert list(inspect.signature(Mine).parameters) == ["strength"]
    assert Mine(0.2).config.fedprox.mu == 0.2


def test_the_public_package_has_every_strategy_and_nothing_else() -> None:
    assert set(bouquet.strategies.__all__) == {
        "STRATEGIES",
        "Strategy",
        *(made.__name__ for made in STRATEGIES.values()),
    }
    assert set(STRATEGIES) == {
        getattr(bouquet.strategies, made.__name__).algorithm for made in STRATEGIES.values()
    }
