"""The examples in the docstrings of the rules."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import numpy as np
import pytest

from strategies import rules
from strategies.engine.state import AggregatedReplies, ServerState
from task.classical.columns import Variable
from task.config.knobs import Config
from task.resolve.read import read_config

# Arithmetic of several rules, and what several are derived from.
SHARED = {"client_models", "exact_sums", "robust_math", "shared_table", "survival"}
SHARED |= {"secureboost", "splitnn", "vertical_logistic"}  # whose update is `strategies.rules.parties`'s
MODULES = [f"strategies.rules.{m.name}" for m in pkgutil.iter_modules(rules.__path__) if m.name not in SHARED]
NAMES = {"np": np, "Config": Config, "AggregatedReplies": AggregatedReplies, "ServerState": ServerState}
NAMES |= {"Variable": Variable, "read_config": read_config}


@pytest.mark.parametrize("name", ["strategies.engine.rule", "strategies.engine.schedule", *MODULES])
def test_the_example_is_there_and_right(name: str) -> None:
    found = doctest.testmod(import_module(name), extraglobs=NAMES)
    assert found.attempted > 0
    assert found.failed == 0
