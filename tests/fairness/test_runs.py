"""Runs that compare groups of people: the counts are those of the predictions, and owners' rules hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file

from client_app.app import make_app
from server_app.app import run
from server_app.results.compare import choose, table
from server_app.results.groups import groups
from server_app.results.headline import headline
from server_app.results.people import tables_of
from task.errors import BouquetError
from task.resolve.read import read_config
from tests.support.federation import in_one_process
from tests.support.grid import LocalGrid
from tests.support.wards import deployed, keys_in, pooled

HEADER = "split,age,bmi,sex:group,ill:target(no|yes)"
GROUPS = "sex(f|m), age>50"
SIZES = {"ward-1": 80, "ward-2": 60, "ward-3": 70}


def people(name: str) -> np.ndarray:
    """Return rows of age, bmi, whether female, and whether ill; the first half is for training."""
    rng = np.random.default_rng(int(name[-1]))
    n = SIZES[name]
    age, bmi, female = rng.uniform(20, 80, n).round(1), rng.random(n).round(3), rng.random(n) < 0.4
    ill = rng.random(n) < 1 / (1 + np.exp(-0.08 * (age - 50) + female))
    return np.stack([age, bmi, female, ill], 1)


def write(folder: Path, *, whole: bool = False) -> dict[str, Path]:
    """Write a file for each ward; `whole` = one file of all, with a column of owners."""
    files, lines = dict[str, Path](), [f"client,{HEADER}"]
    for name, n in SIZES.items():
        mine = [
            f"{'train' if i < n // 2 else 'test'},{a:.1f},{b:.3f},{'f' if f else 'm'},{'yes' if y else 'no'}"
            for i, (a, b, f, y) in enumerate(people(name))
        ]
        files[name] = folder / f"{name}.csv"
        files[name].parent.mkdir(parents=True, exist_ok=True)
        files[name].write_text("\n".join([HEADER, *mine]) + "\n")
        lines += [f"{name},{line}" for line in mine]
    if whole:
        (folder / "all.csv").write_text("\n".join(lines) + "\n")
    return files


KEYS = {"groups": GROUPS, "standardise": True, "num-server-rounds": 2, "learning-rate": 0.5, "batch-size": 10}


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def counted(folder: Path, names: tuple[str, ...] = tuple(SIZES)) -> dict[str, tuple[int, ...]]:
    """Return TP, FP, FN, TN by group, from the model's file and the people, without the program."""
    model = load_file(folder / "model.safetensors")
    weight, bias = (next(a for name, a in model.items() if name.endswith(end)) for end in ("weight", "bias"))
    every = np.concatenate([people(name)[: SIZES[name] // 2] for name in SIZES])
    tests = np.concatenate([people(name)[SIZES[name] // 2 :] for name in names])
    x = (tests[:, :2] - every[:, :2].mean(0)) / every[:, :2].std(0)
    predicted, true = (x @ weight.T + bias).argmax(1) == 1, tests[:, 3] == 1
    female, old = tests[:, 2] == 1, tests[:, 0] > 50
    found = {}
    for name, mine in {"f": female, "m": ~female, "age <= 50": ~old, "age > 50": old}.items():
        cells = (predicted & true, predicted & ~true, ~predicted & true, ~predicted & ~true)
        found[name] = tuple(int((mine & cell).sum()) for cell in cells)
    return found


def outcomes(report: list[dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Return the same from a report, whose rates are of whole numbers."""
    found = {}
    for group in (g for comparison in report for g in comparison["groups"]):
        rates = group["classes"][0]
        tp, fp = (round(rates[rate]["value"] * rates[rate]["of"]) for rate in ("tpr", "fpr"))
        found[group["group"]] = tp, fp, rates["tpr"]["of"] - tp, rates["fpr"]["of"] - fp
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation of all wards, whose key leaves the values of the column to the data."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder, whole=True)
    keys = KEYS | {"groups": "sex, age>50", "partition": "natural", "num-clients": 0}
    return pooled(folder, **keys, **{"data-path": str(folder / "all.csv")})


def test_the_counts_are_those_of_the_models_predictions(whole: Path) -> None:
    found = result(whole)
    assert outcomes(found["groups"]["pooled"]) == counted(whole)
    assert {g["sites"] for c in found["groups"]["pooled"] for g in c["groups"]} == {3}


def test_the_server_measures_the_same_people_on_its_test_set(whole: Path) -> None:
    found = result(whole)
    assert outcomes(found["server_groups"]) == counted(whole)
    at_clients = [g["ece"]["value"] for c in found["groups"]["pooled"] for g in c["groups"]]
    assert [g["ece"]["value"] for c in found["server_groups"] for g in c["groups"]] == pytest.approx(
        at_clients
    )


def test_each_site_has_its_own_rates(whole: Path) -> None:
    sites = result(whole)["groups"]["sites"]
    assert sorted(sites) == sorted(SIZES)
    for name, report in sites.items():
        for group in (g for comparison in report for g in comparison["groups"]):
            tp, fp, fn, tn = counted(whole, (name,))[group["group"]]
            assert group["n"] == tp + fp + fn + tn
            assert group["accuracy"] == (tp + tn) / group["n"]
            assert group["tpr"] == [tp / (tp + fn) if tp + fn else None]


def test_the_terminal_the_page_and_a_comparison_show_the_gaps(whole: Path) -> None:
    found = result(whole)
    by_sex = found["groups"]["pooled"][0]
    assert f"lowest accuracy {by_sex['worst_accuracy']:.3f}" in dict(headline(found))["Groups, sex"]
    captions = [one["caption"] for one in tables_of(found)]
    assert captions[:3] == [
        "sex, on the clients' own test data",
        "sex, gaps between the groups",
        "sex, by site",
    ]
    assert "sex, on the clients' own test data" in (whole / "report.html").read_text()
    curves = groups([whole])
    head, lines, _ = table(curves, choose(curves)[0], 0.9)
    at = head.index("sex: equalised odds")
    assert lines[0][at] == f"{by_sex['equalised_odds_difference']:.3f}"


def test_nodes_with_data_of_their_own_give_the_same_counts(tmp_path: Path, whole: Path) -> None:
    found = result(deployed(tmp_path, write(tmp_path), **KEYS))
    assert found["groups"]["pooled"] == result(whole)["groups"]["pooled"]
    assert "server_groups" not in found


def test_a_masked_sum_is_the_same_table_without_the_sites(tmp_path: Path, whole: Path) -> None:
    write(tmp_path, whole=True)
    keys = keys_in(tmp_path, **KEYS, **{"secagg": True, "partition": "natural", "num-clients": 0})
    keys |= {"data-path": str(tmp_path / "all.csv")}
    found = result(in_one_process(keys, tmp_path / "runs", nodes=3))
    clear = result(whole)["groups"]["pooled"]
    assert outcomes(found["groups"]["pooled"]) == outcomes(clear)
    assert "sites" not in found["groups"]


def test_what_an_owner_closes_is_neither_in_the_sum_nor_in_a_file(tmp_path: Path) -> None:
    """Ward 1 lets no count of fewer than 12 persons go, so that its outcomes are closed."""
    folder = deployed(tmp_path, write(tmp_path), {"ward-1": {"min-examples": 12}}, **KEYS)
    found = result(folder)["groups"]
    own = counted(folder, ("ward-1",))
    assert min(own["f"]) < 12 <= sum(own["f"])  # what is tested
    others = counted(folder, ("ward-2", "ward-3"))
    assert outcomes(found["pooled"])["f"] == others["f"]
    (by_sex, _) = found["sites"]["ward-1"]
    assert [group["tpr"] for group in by_sex["groups"]] == [[None], [None]]
    assert [group["n"] for group in by_sex["groups"]] == [sum(own["f"]), sum(own["m"])]
    assert found["pooled"][0]["groups"][0]["accuracy"]["of"] == sum(own["f"]) + sum(others["f"])


def test_two_runs_do_not_tell_of_those_between_two_cuts(tmp_path: Path) -> None:
    """First `age>50`, then `age>52`: the difference would be those of 51 and 52."""
    keys = {"num-server-rounds": 1, "standardise": True, "learning-rate": 0.5, "batch-size": 10}
    files, owner = write(tmp_path), {"ward-1": {"min-examples": 5}}
    between = [row for row in people("ward-1")[40:] if 50 < row[0] <= 52]
    assert 0 < len(between) < 5

    def sites(cut: int, name: str) -> list[str]:
        own = {"groups": f"age>{cut}", "run-name": name}
        return list(result(deployed(tmp_path, files, owner, **keys, **own))["groups"]["sites"])

    assert sites(50, "a") == ["ward-1", "ward-2", "ward-3"]
    assert sites(52, "b") == ["ward-2", "ward-3"]
    assert sites(50, "c") == ["ward-1", "ward-2", "ward-3"]
    (ledger,) = tmp_path.rglob("queries.ledger.jsonl")
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert ["refused" in line for line in lines] == [False, True]  # and the same cut again is no question
    assert "differ by fewer persons from those of an earlier question" in lines[1]["refused"]
    assert lines[0]["question"] in lines[1]["refused"]


def test_a_personalised_model_is_tested_as_each_client_has_it(tmp_path: Path, whole: Path) -> None:
    write(tmp_path, whole=True)
    keys = KEYS | {"algorithm": "ditto", "partition": "natural", "num-clients": 0}
    found = result(pooled(tmp_path, **keys, **{"data-path": str(tmp_path / "all.csv")}))
    assert "server_groups" not in found
    n = {name: sum(cells) for name, cells in counted(whole).items()}
    report = found["groups"]["pooled"]
    assert {g["group"]: g["n"] for c in report for g in c["groups"]} == n
    right = sum(g["accuracy"]["value"] * g["n"] for g in report[0]["groups"])
    assert right / sum(SIZES[name] // 2 for name in SIZES) == pytest.approx(found["client_accuracy"])


def test_impossible_counts_of_a_client_are_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lie(reply: Message) -> Message:
        for name, record in reply.content.array_records.items():
            if "group-counts" in name:
                rows = record["rows"].numpy()
                rows[..., 0, 1] += 1000
                record["rows"] = type(record["rows"])(rows)
                lies.append(name)
        return reply

    lies = list[str]()
    keys = keys_in(tmp_path, **KEYS)
    state = {"state-dir": keys.pop("state-dir")}
    own = [{"client-name": name, "data-path": str(path), **state} for name, path in write(tmp_path).items()]
    grid = LocalGrid(make_app(), own, keys, tamper=lambda node, reply: reply if node else lie(reply))
    folder = run(grid, read_config(keys))
    assert lies
    found = result(folder)["groups"]
    assert len(found["sites"]) == 2
    assert outcomes(found["pooled"]) == counted(folder, tuple(found["sites"]))
    assert "a count is above the client's" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"groups": "sex"}, "because nodes bring data of their own"),
        ({"groups": "height>2"}, "got 'height'"),
        ({"groups": "sex(f|x)"}, "got others"),
    ],
)
def test_a_run_whose_columns_do_not_fit_the_nodes_ends_with_the_reason(
    tmp_path: Path, keys: dict[str, str], why: str
) -> None:
    with pytest.raises(BouquetError) as refused:
        deployed(tmp_path, write(tmp_path), **(KEYS | keys))
    assert why in str(refused.value)
