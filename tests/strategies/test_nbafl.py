"""NbAFL as published: its noise by hand, that it says what it is worth, and that nothing private takes it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.solvers import SOLVERS
from client_app.training.loop import train
from strategies.rules.nbafl import NbAFLState, honest_epsilon, server_update, sigmas
from task.config.algorithm_sections import NbAFLConfig
from task.config.knobs import Config
from task.wire import messages as wire
from tests.support.federation import Keep, owners_config, play, write_owners
from tests.support.models import OneNumber, task_on
from tests.support.rules import reduced, w

C_3 = 1.25 * math.exp(-4.5)  # the delta of which c = 3


def test_sigmas_by_hand() -> None:
    """sigma_U = 3 * 1 * (2 * 20 / 1200) / 50 = 0.002, and sigma_D = sigma_U / 50 * sqrt(25^2 - 50)."""
    config = Config(nbafl=NbAFLConfig(clip=20.0, epsilon=50.0, delta=C_3))
    assert sigmas(config, 1200, 50, 25) == pytest.approx((0.002, 0.002 / 50 * math.sqrt(575)))
    assert sigmas(config, 1200, 625, 25) == (pytest.approx(0.002), 0.0)


def test_the_honest_epsilon_by_hand() -> None:
    """One upload with noise 3.73 times 2C is worth epsilon = 1 at 1e-5; four of twice the noise are too.

    The paper's own noise is far less: mu = sqrt(T) 2C / sigma_U = 5 * 1200 * 50 / 3 = 1e5, epsilon near
    mu^2 / 2.
    """
    config = Config(nbafl=NbAFLConfig(clip=20.0, epsilon=50.0, delta=1e-5))
    assert honest_epsilon(config, 3.73 * 40.0, 1) == pytest.approx(1.0, abs=2e-3)
    assert honest_epsilon(config, 2 * 3.73 * 40.0, 4) == pytest.approx(1.0, abs=2e-3)
    assert honest_epsilon(config, 0.002, 25) == pytest.approx(5e9, rel=1e-4)


def test_a_client_clips_its_model_and_adds_noise() -> None:
    """A step of eta = 0.5 from 0 on x = 2, y = 1 ends in w_k = 0.5, which C = 0.2 makes 0.2."""

    def sent(sigma: float, **order: Any) -> float:
        given = {"server_round": 1, "client": "anna"} | order
        task = task_on(OneNumber(), torch.tensor([2.0]), torch.tensor([1]), lr=0.5)
        asked = wire.TrainOrder(given["server_round"], {}, {}, (given["client"],), (1,))
        config = Config(nbafl=NbAFLConfig(clip=0.2))
        solver = SOLVERS["nbafl"](config, {"sigma-up": sigma}, {}, [{}], (), asked)
        ((upload, _),) = solver.finish(task, train(task, solver))
        return float(upload.arrays["arrays"]["w"][0])

    assert sent(0.0) == pytest.approx(0.2)
    draws = [(sent(0.05, server_round=t, client=c) - 0.2) / 0.05 for t in range(20) for c in "abcde"]
    assert len(set(draws)) == 100
    assert abs(np.mean(draws)) < 0.4
    assert np.std(draws) == pytest.approx(1.0, abs=0.3)


def test_the_server_adds_noise_to_parameters_alone() -> None:
    state = NbAFLState(w(*[0.0] * 4000) | {"seen": np.array([0.0], np.float32)}, 0.1, 0.01)
    ups = {c: (w(*[2.0] * 4000) | {"seen": np.array([4.0], np.float32)}, 1) for c in "ab"}
    new, metrics = server_update(state, reduced("nbafl", ups, trainable=("w",)), Config())
    off = new.arrays["w"] - 2.0
    assert (float(off.std()), float(off.mean())) == pytest.approx((0.01, 0.0), abs=6e-4)
    assert new.arrays["seen"].tolist() == [4.0]
    assert (metrics["sigma-up"], metrics["sigma-down"]) == (0.1, 0.01)


class Remarks(Keep):
    said: tuple[str, ...] = ()

    def remark(self, line: str) -> None:
        self.said = (*self.said, line)


def test_a_run_says_once_that_it_protects_nobody_and_each_row_what_it_cost(tmp_path: Path) -> None:
    write_owners(tmp_path / "owners.npz")
    keys = owners_config(tmp_path / "owners.npz", algorithm="nbafl", num_server_rounds=3, nbafl__epsilon=60.0)
    journal = Remarks()
    rows = play(keys, journal=journal).rows[1:]
    (line,) = journal.said
    spent = [row["metrics"]["honest-epsilon"] for row in rows]
    assert spent == sorted(spent)
    assert spent[0] > 60.0
    assert "does not protect anyone" in line
    assert f"epsilon = {spent[-1]:.4g} at delta = 0.01" in line
