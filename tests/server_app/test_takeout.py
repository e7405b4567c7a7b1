"""Models taken out of a run: predictions are those that the run measured; bad files are refused."""

from __future__ import annotations

import csv
import io
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file

from client_app.app import make_app
from server_app.app import run
from server_app.takeout.examples import read_examples
from server_app.takeout.export import export
from server_app.takeout.model import take
from server_app.takeout.model_file import find
from server_app.takeout.predict import own_examples, predict
from server_app.takeout.result import RunResult
from server_app.takeout.taken import as_csv, taken_in
from task.datasets import load_dataset
from task.errors import BouquetError, ConfigError, DataError, StateError
from task.resolve.model_card import read_model
from task.resolve.read import read_config
from task.storage.files import read_safetensors
from tests.support.grid import LocalGrid
from tests.support.horizontal import HORIZONTAL


def trained(tmp_path: Path, name: str = "trial", **more: Any) -> Path:
    keys: dict[str, Any] = {
        "num-server-rounds": 2, "run-name": name, "progress": "none", "learning-rate": 0.2, "num-clients": 4,
        "runs-dir": str(tmp_path / "runs"), "state-dir": str(tmp_path / "state"),
    }  # fmt: skip
    keys |= {k.replace("_", "-"): v for k, v in more.items()}
    grid = LocalGrid(make_app(keys), [{"partition-id": i, "num-partitions": 2} for i in range(2)])
    return run(grid, read_config(keys))


def test_a_set_on_disk_is_predicted_by_its_names(tmp_path: Path) -> None:
    """Columns and classes that another site has in another order, taken by their places."""
    import datasets

    def save(name: str, columns: str, classes: list[str]) -> Path:
        rng = np.random.default_rng(0)
        numbers = {c: rng.normal(size=60).astype(np.float32) for c in "ab"}
        labels = [classes.index("ill" if a > 0 else "well") for a in numbers["a"]]
        features = {c: datasets.Value("float32") for c in columns} | {
            "label": datasets.ClassLabel(names=classes)
        }
        made = {c: numbers[c] for c in columns} | {"label": labels}
        whole = datasets.Dataset.from_dict(made, features=datasets.Features(features))
        whole.save_to_disk(str(tmp_path / name))
        return tmp_path / name

    here, there = save("here", "ab", ["well", "ill"]), save("there", "ba", ["ill", "well"])
    keys = {"dataset": "arrow", "data_path": str(here), "model": "logistic", "num_server_rounds": 9}
    taken = take(trained(tmp_path, **keys), None)
    found = [
        predict(taken, read_examples(path, taken.card)).scores["all"]["accuracy"] for path in (here, there)
    ]
    assert found[0] == found[1] > 0.9


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_model_file_says_what_it_is_and_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    """A name, a folder or a time in the metadata would end "the same bytes in simulation and deployment"."""
    one, two = trained(tmp_path, "one"), trained(tmp_path / "elsewhere", "two", checkpoint_every=2)
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    with safe_open(one / "model.safetensors", "np") as file:
        said = json.loads(file.metadata()["bouquet"])
    assert said == {
        "format": 1, "algorithm": "fedavg", "model": "mlp", "dataset": "digits", "seed": 1,
        "task": "classification", "kind": "image", "input_shape": [1, 8, 8], "num_classes": 10,
        "classes": [], "columns": [], "normalisation": {"scale": 16.0, "mean": [0.0], "std": [1.0]},
        "run": {"num-clients": 4, "learning-rate": 0.2, "num-server-rounds": 2, "fraction-evaluate": 0.0},
    }  # fmt: skip


def test_predictions_are_as_good_as_the_run_said(tmp_path: Path) -> None:
    """Data that are scaled otherwise than in training, or a model in training mode, would be worse."""
    folder = trained(tmp_path, model="mlp-bn")
    taken = take(folder)
    found = predict(taken, own_examples(taken), batch=17)
    last = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert found.scores["all"]["accuracy"] == last["accuracy"]
    assert found.scores["all"]["loss"] == pytest.approx(last["loss"], rel=1e-6)
    rows = rows_of(as_csv(found.columns()))
    assert len(rows) == found.scores["all"]["examples"] == 355
    assert list(rows[0]) == ["id", "predicted", *(f"p_{i}" for i in range(10))]
    assert sum(float(rows[0][f"p_{i}"]) for i in range(10)) == pytest.approx(1.0, abs=1e-6)


PERSONAL = sorted(n for n, a in HORIZONTAL.items() if a.personal and n not in ("ensemble", "centralised"))


@pytest.mark.parametrize("name", [*PERSONAL, "fedprox, ala"])
def test_a_clients_own_model_is_the_one_that_it_was_measured_with(name: str, tmp_path: Path) -> None:
    """Shared part without the private one, an older version of it, or a new client's start would differ."""
    more = {"model": "mlp-bn"} if name == "fedbn" else {}
    folder = trained(tmp_path, algorithm=name.split(",")[0], ala=name.endswith("ala"), **more)
    lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    last = next(r for r in lines if (r["name"], r["round"], r["phase"]) == ("client-2", 2, "evaluate"))
    taken = take(folder, "client-2")
    found = predict(taken, own_examples(taken))
    assert found.scores["all"]["accuracy"] == pytest.approx(last["metrics"]["accuracy"], abs=1e-12)
    assert found.scores["all"]["loss"] == pytest.approx(last["metrics"]["loss"], rel=1e-5)


def test_a_model_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    shared, plain = trained(tmp_path, "shared", algorithm="fedper"), trained(tmp_path, "plain")
    with pytest.raises(ConfigError, match=r"expected --client NAME.*3\.weight"):
        take(shared)
    with pytest.raises(ConfigError, match="clients of fedavg have no models of their own"):
        take(plain, "client-0")
    with pytest.raises(ConfigError, match=r"--client: expected one of client-0.*got 'client-9'"):
        take(shared, "client-9")
    for file in (tmp_path / "state").rglob("client-0.safetensors"):
        file.unlink()
    with pytest.raises(StateError, match="client-0: expected its state"):  # not a new client's model
        take(shared, "client-0")
    with pytest.raises(ConfigError, match="expected a result folder"):
        take(tmp_path / "nothing")


def table(path: Path, header: str, *lines: str) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """A run on a table: the label is whether a < b, and columns have names."""
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{'yes' if a < b else 'no'},{b:.3f}" for a, b in rng.random((200, 2))]
    file = table(tmp_path / "train.csv", "a,label,b", *rows)
    return trained(tmp_path, dataset="csv", data_path=str(file), model="logistic", learning_rate=0.5)


def test_columns_of_a_csv_are_found_by_name_in_any_order(cells: Path, tmp_path: Path) -> None:
    """By position a and b would be exchanged, and every prediction turned round."""
    card, _ = read_model(cells / "model.safetensors")
    assert (card.columns, card.classes) == (("a", "b", "label"), ("no", "yes"))
    taken = take(cells)
    new = table(tmp_path / "new.csv", "id,b,note,a", "p7,0.9,x,0.1", "p8,0.1,y,0.9")
    rows = rows_of(as_csv(predict(taken, read_examples(new, card)).columns()))
    assert [(r["id"], r["predicted"]) for r in rows] == [("p7", "yes"), ("p8", "no")]
    typed = table(tmp_path / "typed.csv", "patient:id,b,id:ignore,a", "p7,0.9,x,0.1", "p8,0.1,y,0.9")
    rows = rows_of(as_csv(predict(taken, read_examples(typed, card)).columns()))
    assert [r["id"] for r in rows] == ["p7", "p8"]  # the column of that type, whatever its name
    labelled = table(tmp_path / "l.csv", "a,b,label,split", "0.1,0.9,yes,train", "0.9,0.1,yes,test")
    found = predict(taken, read_examples(labelled, card))
    assert {p: (s["accuracy"], s["examples"]) for p, s in found.scores.items()} == {
        "all": (0.5, 2), "train": (1.0, 1), "test": (0.0, 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("header", "line", "said"),
    [
        ("a,c", "1,2", "line 1: expected the columns that the model was trained on; got none called b"),
        ("a,b", "1,x", 'line 2, column "b": expected a number; got "x"'),
        ("a,b", "1,1_0", 'line 2, column "b": expected a number; got "1_0"'),
        ("a,b", '1,"2,5"', "Write numbers with a decimal point"),
        ("a,b", '"1,2', "line 2: expected .* each quotation mark closed"),
        ("a,b", "1", "line 2: expected 2 cells"),
        ("a,b,label", "1,2,maybe", "line 2: expected a label of no, yes; got 'maybe'"),
    ],
)
def test_a_csv_that_the_model_cannot_read_is_refused(
    header: str, line: str, said: str, cells: Path, tmp_path: Path
) -> None:
    card, _ = read_model(cells / "model.safetensors")
    with pytest.raises(DataError, match=said):
        read_examples(table(tmp_path / "bad.csv", header, line), card)


def test_all_that_is_wrong_in_a_csv_is_said_at_once(cells: Path, tmp_path: Path) -> None:
    card, _ = read_model(cells / "model.safetensors")
    with pytest.raises(DataError, match=r'line 2, column "b": .*got "2,5".*line 3, column "a": .*got ""'):
        read_examples(table(tmp_path / "bad.csv", "a,b", '1,"2,5"', ",1"), card)


def test_a_run_that_is_not_found_leads_to_the_runs_of_kits_near(
    cells: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "kits" / "link" / "runs"
    shutil.copytree(cells, place / "real")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"runs has trial.* Runs are in kits/link/runs, too. .*/runs/real"):
        find(Path("real"))
    with pytest.raises(ConfigError, match=r"Runs are in kits/link/runs, too.$"):
        find(Path("other"))
    assert find(place / "real")


def test_pictures_and_arrays_predict_alike_with_and_without_labels(tmp_path: Path) -> None:
    folder = trained(tmp_path, num_server_rounds=1)
    taken = take(folder)
    config = read_config({})
    data = load_dataset(config.data, config.synthetic, 1)
    rows = np.arange(data.num_train, data.num_train + 6)
    raw, labels = np.asarray(data.x[rows]), np.asarray(data.y[rows])
    np.savez(tmp_path / "six.npz", x=raw, y=labels)
    tree = tmp_path / "tree"
    with zipfile.ZipFile(tmp_path / "loose.zip", "w") as archive:
        for i, (picture, label) in enumerate(zip(raw, labels, strict=True)):
            place = tree / str(label) / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(place)
            archive.write(place, f"{i}.png")
    (wanted,) = [torch.softmax(taken.model(data.inputs(rows)), 1).detach().numpy()]
    arrays = predict(taken, read_examples(tmp_path / "six.npz", taken.card))
    loose = predict(taken, read_examples(tmp_path / "loose.zip", taken.card))
    sorted_by_class = predict(taken, read_examples(tree, taken.card))
    for found in (arrays, loose):
        np.testing.assert_allclose(found.probabilities, wanted, atol=1e-7)
    assert loose.ids == tuple(f"{i}.png" for i in range(6))
    assert not loose.scores
    assert sorted_by_class.scores["all"]["loss"] == pytest.approx(arrays.scores["all"]["loss"], rel=1e-6)
    one = predict(taken, read_examples(tree / str(labels[0]) / "0.png", taken.card))
    np.testing.assert_allclose(one.probabilities, wanted[:1], atol=1e-7)


def test_arrays_of_another_kind_or_shape_are_refused(tmp_path: Path) -> None:
    """Floats of 0..1 that are divided by 16 again would be predicted, and wrongly."""
    card, _ = read_model(trained(tmp_path, num_server_rounds=1) / "model.safetensors")
    for x, said in (
        (np.zeros((2, 8, 8), np.float32), "expected x of uint8 pictures"),
        (np.zeros((2, 9, 8), np.uint8), r"expected examples of shape \(1, 8, 8\); got \(1, 9, 8\)"),
    ):
        np.savez(tmp_path / "x.npz", x=x)
        with pytest.raises(DataError, match=said):
            read_examples(tmp_path / "x.npz", card)


def test_a_file_without_card_is_refused(tmp_path: Path) -> None:
    folder = trained(tmp_path, num_server_rounds=1)
    arrays = load_file(folder / "model.safetensors")
    from safetensors.numpy import save_file

    save_file(arrays, tmp_path / "bare.safetensors")
    with pytest.raises(BouquetError, match="expected a model of Bouquet"):
        take(tmp_path / "bare.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])
    with pytest.raises(StateError, match="expected a whole safetensors file"):
        take(tmp_path / "cut.safetensors")


def test_a_table_is_predicted_as_it_was_trained_on_filled_encoded_and_standardised(tmp_path: Path) -> None:
    """From the model's file alone; without the means the same rows would all be of one class."""
    rng = np.random.default_rng(0)
    rows = [
        f"{1e6 + a:.3f},{'' if i % 9 == 0 else 'xy'[i % 2]},{'yes' if a > 0 else 'no'}"
        for i, a in enumerate(rng.normal(size=200))
    ]
    file = table(tmp_path / "train.csv", "a,kind:category(x|y),ok:target(no|yes)", *rows)
    keys = {"missing": "mean", "standardise": True, "missing_indicator": True, "learning_rate": 0.5}
    folder = trained(tmp_path, dataset="csv", data_path=str(file), model="logistic", **keys)
    card, _ = read_model(folder / "model.safetensors")
    assert card.columns == ("a", "kind:category(x|y)", "ok")
    assert card.moments is not None
    taken = take(folder)
    new = table(tmp_path / "new.csv", "kind,a,ok", "y,1000001,yes", ",999999,no", "x,1000002.5,yes")
    found = predict(taken, read_examples(new, card))
    assert [r["predicted"] for r in rows_of(as_csv(found.columns()))] == ["yes", "no", "yes"]
    assert found.scores["all"]["accuracy"] == 1
    whole = predict(taken, read_examples(file, card)).scores["all"]
    assert whole["accuracy"] > 0.95
    own = predict(taken, own_examples(taken))
    assert own.scores["all"]["accuracy"] > 0.9
    exported = export(taken, "torchscript", tmp_path / "m.pt", read_examples(file, card))
    assert exported.difference <= 1e-6  # filling, gaps and standardisation are in it
    deployed = replace(card, columns=())  # nodes keep names to themselves; then the file's header tells
    typed = table(tmp_path / "typed.csv", "a,kind:category(x|y)", "1000001,y", "999999,", "1000002.5,x")
    again = predict(taken, read_examples(typed, deployed))
    np.testing.assert_array_equal(again.probabilities, found.probabilities)


def test_an_id_is_no_feature_of_a_model_that_knows_no_columns(tmp_path: Path) -> None:
    """As of a deployed run: one column more than the model reads, called id, names the rows."""
    file = table(
        tmp_path / "train.csv", "a,b,label", *[f"{i % 7},{i % 3},{int(i % 7 > 3)}" for i in range(90)]
    )
    taken = take(trained(tmp_path, dataset="csv", data_path=str(file), model="logistic"))
    card = replace(taken.card, columns=())
    new = table(tmp_path / "new.csv", "id,a,b,label", "905,1,2,0", "7,6,0,1")
    found = predict(taken, read_examples(new, card))
    assert [row["id"] for row in rows_of(as_csv(found.columns()))] == ["905", "7"]
    plain = table(tmp_path / "plain.csv", "a,b", "1,2", "6,0")
    np.testing.assert_array_equal(
        found.probabilities, predict(taken, read_examples(plain, card)).probabilities
    )


def test_a_clients_own_model_reads_a_standardised_table(tmp_path: Path) -> None:
    """Per-FedAvg adapts on the client's own rows when its model is taken out: these are standardised, too."""
    rows = [f"{1e6 + i % 7:.1f},{int(i % 7 > 3)}" for i in range(120)]
    file = table(tmp_path / "train.csv", "a,label", *rows)
    folder = trained(
        tmp_path, dataset="csv", data_path=str(file), model="logistic", standardise=True,
        algorithm="per-fedavg", learning_rate=0.5, fraction_evaluate=1.0, local_test_fraction=0.3,
    )  # fmt: skip
    taken = take(folder, "client-1")
    assert np.isfinite(predict(taken, own_examples(taken)).scores["all"]["loss"])


def test_a_clients_own_model_of_a_run_without_a_name_is_found(tmp_path: Path) -> None:
    """The folder of its state is named by the changed keys, and `take` changes the device."""
    folder = trained(tmp_path, name="", algorithm="ditto", model="logistic", device="auto", threads=1)
    taken = take(folder, "client-1")
    found = predict(taken, own_examples(taken))
    lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    last = next(r for r in lines if (r["name"], r["round"], r["phase"]) == ("client-1", 2, "evaluate"))
    assert found.scores["all"]["accuracy"] == pytest.approx(last["metrics"]["accuracy"])


CLASSES = {"model": "logistic", "num-classes": 2}
DECLARED = {"learning-rate": 0.1}
TABLES: dict[str, dict[str, Any]] = {
    "fedavg": CLASSES,
    "ditto": CLASSES,
    "pca": DECLARED | {"pca.columns": "a(-9..9), b(-9..9)", "num-server-rounds": 1},
    "gbdt": DECLARED | {"gbdt.columns": "a(-9..9), b(-9..9)", "gbdt.target": "label(0..1)"},
    "secureboost": DECLARED
    | {"num-classes": 2, "partition": "columns", "columns": "even", "vertical.key-bits": 0},
}


@pytest.mark.parametrize("algorithm", TABLES)
def test_a_command_reads_the_model_file_once(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 2)).round(3), columns=["a", "b"])
    parties = algorithm == "secureboost"
    frame = frame.assign(label=(frame.a > 0).astype(int)).rename_axis("who:id" if parties else "id")
    frame.to_csv(tmp_path / "rows.csv", index=parties)
    keys = {"dataset": "csv", "data-path": str(tmp_path / "rows.csv"), "num-clients": 2}
    folder = trained(tmp_path, algorithm=algorithm, **keys, **TABLES[algorithm])
    frame.to_csv(tmp_path / "new.csv", index=False)
    read: list[Path] = []

    def counted(path: Path) -> Any:
        read.append(path)
        return read_safetensors(path)

    monkeypatch.setattr("task.resolve.model_card.read_safetensors", counted)
    said = taken_in(folder).predict(tmp_path / "new.csv", whole=False, batch=8)
    assert len(as_csv(said.columns).splitlines()) == 81
    assert read == [folder / "model.safetensors"]
    again = RunResult(folder).predict(tmp_path / "new.csv")
    shown = pd.read_csv(io.StringIO(as_csv(said.columns)))
    found = pd.read_csv(io.StringIO(as_csv([(name, again[name].to_numpy()) for name in again])))
    # Of some processors the last bit depends on how many rows a batch has.
    pd.testing.assert_frame_equal(found, shown, rtol=0, atol=1e-6)
