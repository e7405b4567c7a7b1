"""The tables of families and of attacks: best rates, seeds, and a run as small as can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from task.config.read import read_recipe
from task.errors import ConfigError
from tests.bench import claims, data, families, robustness

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULTS = DOCS / "results"
TINY = {
    "train-images-idx3-ubyte": (40, 4, 4),
    "train-labels-idx1-ubyte": (40,),
    "t10k-images-idx3-ubyte": (20, 4, 4),
    "t10k-labels-idx1-ubyte": (20,),
}


def figures(accuracy: float) -> families.Found:
    return {"accuracy": accuracy, "MB": 2.0, "seconds": 3.0}


def test_each_algorithm_takes_the_rate_with_the_best_mean_over_seeds() -> None:
    found = {
        "global fedavg shards 0.1 1": figures(60.0),
        "global fedavg shards 0.1 2": figures(80.0),
        "global fedavg shards 0.5 1": figures(75.0),
        "global fedavg shards 0.5 2": figures(55.0),
        "global scaffold shards 0.1 1": figures(71.0),
        "own fedavg shards 0.1 1": figures(99.0),  # another family's
    }
    assert families.table(found, "global", ["shards"]).splitlines()[2:] == [
        "| `scaffold` | **71.0** | 0.1 | 1 | 2.00 | 3.0 |",
        "| `fedavg` | 70.0 ± 14.1 | 0.1 | 2 | 2.00 | 3.0 |",
    ]


def test_a_run_gives_figures_and_is_not_done_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.stand_in(tmp_path / "data" / "MNIST" / "raw", TINY)
    monkeypatch.setenv("BOUQUET_DATA", str(tmp_path / "data"))
    small = {"model": "logistic", "num-clients": 4, "max-examples": 0, "fraction-train": 0.5}
    monkeypatch.setattr(families, "COMMON", families.COMMON | small | {"num-server-rounds": 5})
    out, threads = tmp_path / "found.json", torch.get_num_threads()
    try:
        families.main("own", "shards", 1, "0.05", "fedavg", out)
        first = out.read_text(encoding="utf-8")
        families.main("own", "shards", 1, "0.05", "fedavg", out)
    finally:
        torch.set_num_threads(threads)
    assert list(json.loads(first)) == ["own fedavg shards 0.05 1"]
    # Two clients send 16 x 10 weights and 10 biases of four bytes, and little else.
    assert json.loads(first)["own fedavg shards 0.05 1"]["MB"] == pytest.approx(2 * 680e-6, rel=0.5)
    assert out.read_text(encoding="utf-8") == first


def test_a_table_of_attacks_says_how_far_a_backdoor_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robustness, "ATTACKS", {"none": {}, "label flip": {}, "backdoor": {}})
    monkeypatch.setattr(robustness, "RULES", ["fedavg", "bulyan", "krum"])
    found = robustness.Map(
        {
            "fedavg": {"none": 0.9, "label flip": 0.7, "backdoor": 0.8},
            "bulyan": {},
            "krum": {"none": 0.5, "label flip": 0.84},
        },
        {"fedavg": {"backdoor": 0.996}},
        {"bulyan": 'run-config key "robust.byzantine": bulyan needs 27; with that number f is at most 4'},
    )
    assert robustness.as_markdown(found).splitlines() == [
        "| rule | none | label flip | backdoor |",
        "|---|---|---|---|",
        "| FedAvg | 90.0 | 70.0 | 80.0 (99.6) |",
        "| Bulyan | bulyan needs 27 |  |  |",
        "| Krum | 50.0 | 84.0 |  |",
    ]
    assert robustness.summary({0.1: found}).splitlines() == [
        "| rule | 10%: least, under | 10%: mean | 10%: backdoor |",
        "|---|---|---|---|",
        "| FedAvg | 70.0, label flip | 75.0 | 99.6 |",
        "| Bulyan | refused |  |  |",
        "| Krum | 84.0, label flip (of 1 attacks) | 84.0 | 0.0 |",
    ]
    assert robustness.survivors({"IID": {0.1: found}}).splitlines()[2:] == [
        "| FedAvg | 70.0 † |",
        "| Bulyan | refused |",
        "| Krum |  |",
    ]


def test_the_tables_of_attacks_are_those_of_the_figures() -> None:
    text = (DOCS.parent / "task" / "recipes" / "README.md").read_text(encoding="utf-8")
    kinds = robustness.read_all(DOCS / "images" / "robust-attacks.png")
    for maps in kinds.values():
        assert robustness.as_markdown(maps[0.2]) in text
        assert len(maps) == 1 or robustness.summary(maps) in text
    assert robustness.survivors(kinds) in (DOCS / "results" / "measured.md").read_text(encoding="utf-8")


def test_a_rule_that_has_too_few_clients_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(keys: object) -> None:
        asked.append(keys)
        raise ConfigError('run-config key "robust.byzantine": expected 27 clients; got 20')

    asked: list[object] = []
    monkeypatch.setattr(robustness, "RULES", ["bulyan"])
    monkeypatch.setattr(robustness, "measured", refuse)
    threads = torch.get_num_threads()
    try:
        recipe = read_recipe(robustness.RECIPE)
        found = [robustness.measure_all(recipe, {"seed": 1}, tmp_path / "map.json") for _ in range(2)]
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == robustness.Map({"bulyan": {}}, {}, found[0].refused)
    assert "27 clients" in found[0].refused["bulyan"]
    assert len(asked) == 1


def test_a_claim_has_a_table_of_its_runs() -> None:
    runs = {"fedavg": [{"accuracy": 80.0, "forgetting": 9.0}, {"accuracy": 82.0, "forgetting": 11.0}]}
    assert claims.table("Which is ahead", runs | {"fedntd": [{"accuracy": 83.0}]}).splitlines()[2:] == [
        "| run | accuracy (%) | forgetting | seeds |",
        "|---|---|---|---|",
        "| fedavg | 81.0 ± 1.4 | 10.0 ± 1.4 | 2 |",
        "| fedntd | 83.0 |  | 1 |",
    ]
    cut = {"accuracy": 90.0, "clusters": ["0 of 5", "5 of 5"], "cut": 31}
    mixed = cut | {"clusters": ["1 of 5", "4 of 5"]}
    whole = {"accuracy": 60.0, "clusters": ["5 of 10"], "cut": None}
    assert claims.table("Who is apart", {"cfl": [cut, mixed, whole]}).splitlines()[2:] == [
        "| run | accuracy (%) | first cut, in round | seeds |",
        "|---|---|---|---|",
        "| cfl | 80.0 ± 17.3 | 31; 31, mixed; never | 3 |",
    ]


def test_the_tables_of_the_documents_are_those_of_the_figures() -> None:
    text, found = ((RESULTS / f"families.{kind}").read_text(encoding="utf-8") for kind in ("md", "json"))
    figures = json.loads(found)
    for name in {key.partition(" ")[0] for key in figures}:
        partitions = ["dirichlet"] if name.startswith("cifar10") else ["shards", "dirichlet"]
        assert families.table(figures, name, partitions) in text


def test_so_are_those_of_the_claims() -> None:
    text, found = ((RESULTS / name).read_text(encoding="utf-8") for name in ("claims.md", "claims.json"))
    for made in claims.tables(json.loads(found)).values():
        assert made in text
