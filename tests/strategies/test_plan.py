"""The cohort of a round and the stragglers in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from strategies.engine.cohort import RoundPlan, plan_round
from strategies.engine.phases import PhaseEngine
from strategies.engine.rule import Phase
from strategies.membership.client_registry import ClientRegistry
from task.catalogue.algorithms import ALGORITHMS
from task.config.knobs import Config
from task.config.sections import ServerConfig, TrainConfig
from task.numerics import seeds
from task.numerics.seeds import rng_for
from task.wire import registration


def registry_of(counts: dict[str, int], nodes: int = 1, pool: str = "one disk") -> ClientRegistry:
    """Return a registry whose nodes 0, 1, ... all host all clients."""
    registry = ClientRegistry(1.0, 1)
    names, n = tuple(sorted(counts)), np.array([counts[c] for c in sorted(counts)])
    registry._answers = {i: registration.Registration(names, n, pool) for i in range(nodes)}
    registry._index()
    return registry


CLIENTS = {f"client-{i:02d}": 10 for i in range(20)}
REGISTRY = registry_of(CLIENTS)


def spread(plan: RoundPlan, registry: ClientRegistry, full: int) -> dict[int, list[str]]:
    """Return the clients of a plan by node, where the others do `full` epochs."""
    engine = PhaseEngine(Config(train=TrainConfig(local_epochs=full)), registry)
    return engine.spread(Phase("train", ALGORITHMS["fedavg"], plan.cohort, epochs=plan.epochs))


def config(
    share: float, *, epochs: int = 5, drop: bool = False, fraction: float = 1.0, seed: int = 1
) -> Config:
    server = ServerConfig(stragglers=share, drop_stragglers=drop, fraction_train=fraction)
    return Config(seed=seed, train=TrainConfig(local_epochs=epochs), server=server)


def planned(config: Config, registry: ClientRegistry, t: int) -> RoundPlan:
    """Return the plan of a round whose clients are drawn uniformly."""
    rng = rng_for(config.seed, seeds.SELECTION, t)
    return plan_round(config, t, registry.draw(config.server.fraction_train, rng))


@pytest.mark.parametrize(
    ("share", "slow"), [(0.0, 0), (0.02, 0), (0.03, 1), (0.1, 2), (0.5, 10), (0.9, 18), (1.0, 20)]
)
@pytest.mark.parametrize("drop", [False, True])
def test_the_number_of_stragglers_is_the_rounded_share_of_the_cohort(
    share: float, slow: int, drop: bool
) -> None:
    # 0.02 * 20 = 0.4 -> 0;  0.03 * 20 = 0.6 -> 1
    for t in range(1, 6):
        plan = planned(config(share, drop=drop), REGISTRY, t)
        assert len(plan.stragglers) == slow
        assert set(plan.stragglers) <= set(plan.clients)
        assert plan.asked == (20 - slow if drop else 20)
        assert len(plan.clients) == 20  # who is dropped was selected


def test_stragglers_have_time_for_one_to_all_epochs() -> None:
    drawn: Counter[int] = Counter()
    for t in range(1, 201):
        drawn.update(planned(config(0.5), REGISTRY, t).epochs.values())
    # 2000 draws of x ~ U{1..5}: 400 each, standard deviation sqrt(2000 * 0.2 * 0.8) = 18
    assert sorted(drawn) == [1, 2, 3, 4, 5]
    assert all(abs(n - 400) < 5 * 18 for n in drawn.values())


def test_with_one_epoch_a_straggler_still_does_it() -> None:
    assert set(planned(config(0.5, epochs=1), REGISTRY, 1).epochs.values()) == {1}


def test_everybody_is_slow_equally_often() -> None:
    slow: Counter[str] = Counter()
    for t in range(1, 401):
        slow.update(planned(config(0.25), REGISTRY, t).stragglers)
    # 5 of 20 in 400 rounds: 100 each, standard deviation sqrt(400 * 0.25 * 0.75) = 8.7
    assert len(slow) == 20
    assert all(abs(n - 100) < 5 * 8.7 for n in slow.values())


def test_the_plan_depends_on_seed_and_round_alone() -> None:
    plans = [planned(config(0.5, fraction=0.5), REGISTRY, t) for t in range(1, 9)]
    again = [planned(config(0.5, fraction=0.5), registry_of(CLIENTS, nodes=3), t) for t in range(1, 9)]
    assert plans == again
    other = [planned(config(0.5, fraction=0.5, seed=2), REGISTRY, t) for t in range(1, 9)]
    for key in ("clients", "epochs"):
        mine, theirs = [getattr(p, key) for p in plans], [getattr(p, key) for p in other]
        assert mine != theirs
        assert len({str(m) for m in mine}) > 1


def test_dropping_and_stragglers_do_not_change_who_is_selected() -> None:
    for t in range(1, 6):
        selected = planned(config(0.0, fraction=0.5), REGISTRY, t).clients
        kept = planned(config(0.5, fraction=0.5), REGISTRY, t)
        dropped = planned(config(0.5, fraction=0.5, drop=True), REGISTRY, t)
        assert selected == kept.clients == dropped.clients
        assert kept.stragglers == dropped.stragglers == dropped.dropped
        assert kept.dropped == ()
        assert dropped.epochs == {}


def test_kept_stragglers_are_asked_for_their_epochs_and_dropped_ones_not_at_all() -> None:
    plan = RoundPlan(("client-00", "client-01", "client-02"), {"client-01": 2}, ())
    assert spread(plan, REGISTRY, 5) == {0: ["client-00", "client-01", "client-02"]}
    plan = replace(plan, epochs={}, dropped=("client-01",))
    assert spread(plan, REGISTRY, 5) == {0: ["client-00", "client-02"]}


def test_a_straggler_counts_as_the_share_of_work_that_it_does() -> None:
    """Two nodes of one pool, three equal clients, one of which does few of ten epochs: each of the two
    that work in full gets a node, the slow one goes to either.
    """
    registry = registry_of({"a": 100, "b": 100, "c": 100}, nodes=2)
    seen = 0
    for seed in range(40):
        plan = planned(config(0.34, epochs=10, seed=seed), registry, 1)
        ((slow, epochs),) = plan.epochs.items()
        if epochs > 3:
            continue
        seen += 1
        full = {"a", "b", "c"} - {slow}
        by_node = spread(plan, registry, 10)
        assert all(len(full & set(clients)) == 1 for clients in by_node.values()), (plan, by_node)
    assert seen > 5
