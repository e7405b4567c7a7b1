"""A model of data that only nodes have is used by name, though its file has digests in place of names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from server_app.deploy.kits.provision import provision
from server_app.results.folder import RunFolder
from server_app.run.confined import KIT
from server_app.run.encryption import decrypt
from server_app.run.meaning import names_let_out
from server_app.takeout.examples import read_examples
from server_app.takeout.export import export
from server_app.takeout.model import TakenModel, take
from server_app.takeout.predict import predict
from strategies.membership.agreement import COMMON, Agreement
from strategies.membership.client_identity import Claim, OnlineNode
from strategies.membership.membership import Membership
from task.config.sections import DataConfig
from task.datasets import load_owned
from task.datasets.description import Description, Meaning, described
from task.encryption import ckks
from task.errors import BouquetError, DataError
from task.resolve.model_card import read_model
from task.wire.registration import Registration, read_registration, registration_content
from tests.support.wards import WARDS, deployed, table

COLUMNS = ("age", "bmi", "job:category(clerk|nurse)")
TARGET = "outcome:target(well|ill)"


def ward(path: Path, columns: tuple[str, ...] = COLUMNS, target: str = TARGET, seed: int = 0) -> Path:
    """Write a table in which age alone decides, with its columns in any order."""
    rng, lines = np.random.default_rng(seed), [",".join((*columns, target))]
    for i, (age, bmi) in enumerate(zip(rng.random(60), rng.random(60), strict=True)):
        cells = {"age": f"{age:.3f}", "bmi": f"{bmi:.3f}", "job": ("clerk", "nurse")[i % 2]}
        cells |= {"extra": str(i), "weight": f"{bmi:.3f}"}
        label = "ill" if age > 0.5 else "well"
        lines.append(",".join([*(cells[c.partition(":")[0]] for c in columns), label]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def played(folder: Path, files: dict[str, Path], **more: object) -> Path:
    given = {"num-server-rounds": 8, "learning-rate": 1.0, "progress": "none", **more}
    return deployed(folder, files, **given)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wards")
    files = {name: ward(folder / f"{name}.csv", seed=i) for i, name in enumerate(WARDS)}
    return played(folder, files) / "model.safetensors"


def scored(taken: TakenModel, path: Path) -> float:
    return predict(taken, read_examples(path, taken.card)).scores["all"]["accuracy"]


def test_the_file_has_no_name_of_a_column_or_class(model: Path) -> None:
    with safe_open(model, "np") as file:
        said = str(file.metadata())
    assert "meaning" in said
    for name in ("age", "bmi", "clerk", "nurse", "outcome", "well"):
        assert f'"{name}' not in said


@pytest.mark.parametrize(
    ("columns", "target"),
    [
        (COLUMNS, TARGET),
        (("bmi", "job:category(nurse|clerk)", "age"), "outcome:target(ill|well)"),
        (("bmi", "extra", "job:category(clerk|nurse)", "age"), TARGET),
        (("extra", "weight", "job:category(nurse|clerk)", "bmi", "age"), "outcome"),
    ],
)
def test_columns_and_labels_are_found_by_name(
    model: Path, columns: tuple[str, ...], target: str, tmp_path: Path
) -> None:
    """By position another column would decide, and by number the other class."""
    taken = take(model)
    path = ward(tmp_path / "new.csv", columns, target, seed=9)
    assert scored(taken, path) > 0.9
    found = predict(taken, read_examples(path, taken.card))
    assert [name for name, _ in found.columns()] == ["id", "predicted", "p_well", "p_ill"]


@pytest.mark.parametrize(
    ("columns", "target", "said"),
    [
        (("age", "job:category(clerk|nurse)"), TARGET, "4 inputs, .* got 3"),
        (
            ("age", "weight", "job:category(clerk|nurse)"),
            TARGET,
            "expected the columns that the nodes trained",
        ),
        (("age", "bmi", "job"), TARGET, "the model.s 4 inputs, .*; got 3 inputs, from the columns age, bmi"),
        (
            ("age", "bmi", "job:category(clerk|nurse|cook)"),
            TARGET,
            "expected the columns that",
        ),
        (("age", "bmi", "job:category(clerk|nursing)"), TARGET, "expected the values .* for each category"),
        (COLUMNS, "outcome:target(well|ill|dead)", "expected the 2 classes .* got well, ill, dead"),
    ],
)
def test_what_is_not_the_same_is_refused(
    model: Path, columns: tuple[str, ...], target: str, said: str, tmp_path: Path
) -> None:
    path = ward(tmp_path / "new.csv", columns, target)
    if "nursing" in columns[-1]:
        path.write_text(path.read_text().replace(",nurse,", ",nursing,"))
    with pytest.raises(DataError, match=said):
        read_examples(path, take(model).card)


def test_an_exported_model_and_one_that_begins_with_it_keep_the_meaning(model: Path, tmp_path: Path) -> None:
    taken = take(model)
    path = ward(tmp_path / "new.csv", ("bmi", "age", "job:category(clerk|nurse)"), seed=9)
    out = tmp_path / "out.safetensors"
    export(taken, "safetensors", out, read_examples(path, taken.card))
    assert read_model(out)[0].meaning == taken.card.meaning
    assert scored(take(out), path) > 0.9
    start = {"initial-model": str(out), "num-server-rounds": 1, "learning-rate": 0.0001}
    turned = ("bmi", "job:category(nurse|clerk)", "age")
    files = {
        n: ward(tmp_path / f"{n}.csv", turned, "outcome:target(ill|well)", i) for i, n in enumerate(WARDS)
    }
    again = played(tmp_path, files, **start)  # in another order: read by name, in the model's
    assert read_model(again / "model.safetensors")[0].meaning == taken.card.meaning
    assert scored(take(again), path) > 0.9
    other = ("age", "weight", "job:category(clerk|nurse)")
    files = {n: ward(tmp_path / f"{n}-other.csv", other, seed=i) for i, n in enumerate(WARDS)}
    with pytest.raises(BouquetError, match="the names or kinds of its columns"):
        played(tmp_path / "other", files, **start)


def test_pictures_in_folders_are_found_by_the_names_of_the_folders(tmp_path: Path) -> None:
    def pictures(folder: Path, names: tuple[str, str]) -> Path:
        for label, light in zip(names, (200, 20), strict=True):
            (folder / label).mkdir(parents=True)
            for i in range(12):
                Image.fromarray(np.full((4, 4), light + i, np.uint8)).save(folder / label / f"{i}.png")
        return folder

    files = {name: pictures(tmp_path / name, ("zebra", "ape")) for name in WARDS}
    run = played(tmp_path / "run", files, dataset="imagefolder", **{"num-classes": 2})
    taken = take(run / "model.safetensors")
    assert scored(taken, pictures(tmp_path / "new", ("zebra", "ape"))) == 1.0
    with pytest.raises(DataError, match="expected the 2 classes that the nodes agreed on; got ape, lion"):
        read_examples(pictures(tmp_path / "others", ("lion", "ape")), taken.card)


def test_numbered_classes_stay_numbers(tmp_path: Path) -> None:
    files = {}
    for i, name in enumerate(WARDS):
        files[name] = ward(tmp_path / f"{name}.csv", target="outcome", seed=i)
        files[name].write_text(files[name].read_text().replace(",ill", ",1").replace(",well", ",0"))
    taken = take(played(tmp_path, files, **{"num-classes": 2}) / "model.safetensors")
    assert scored(taken, files["ward-1"]) > 0.9
    with pytest.raises(DataError, match=r"expected the 2 classes|expected a label of 0, 1"):
        read_examples(
            table(tmp_path / "n.csv", "age,bmi,job:category(clerk|nurse),n:ignore,outcome"), taken.card
        )


def test_names_are_in_the_file_where_an_owner_lets_them_out(tmp_path: Path) -> None:
    """One site's names are all sites' names, by the digest; what another says under it is not taken."""
    files = {name: ward(tmp_path / f"{name}.csv", seed=i) for i, name in enumerate(WARDS)}
    files["ward-2"] = ward(tmp_path / "ward-2.csv", ("bmi", *COLUMNS[::2]), "outcome:target(ill|well)", 1)
    run = played(tmp_path, files, policy={"ward-2": {"names": True}})
    card, _ = read_model(run / "model.safetensors")
    assert (card.columns, card.classes) == ((*COLUMNS, "outcome"), ("well", "ill"))
    said = RunFolder(run).config()["data"]
    assert (said["columns"]["listed"]["age"], said["names"]) == ("number", ["well", "ill"])
    path = ward(tmp_path / "new.csv", ("job:category(clerk|nurse)", "extra", "bmi", "age"), "outcome", 9)
    assert scored(take(run), path) > 0.9
    with pytest.raises(DataError, match="got none called bmi"):
        read_examples(ward(tmp_path / "less.csv", ("age", "job:category(clerk|nurse)")), card)


def test_names_that_a_node_makes_up_are_not_taken(tmp_path: Path) -> None:
    owned = described(load_owned(DataConfig(dataset="csv"), str(ward(tmp_path / "w.csv")), "ward-1", 1))
    false = replace(owned, classes=("sick", "well"))
    assert names_let_out(claimed(owned.meaning, false)) is None
    assert names_let_out(claimed(owned.meaning, owned)) == owned


def claimed(meaning: Meaning, names: Description) -> Membership:
    """Return a membership of one node that registered a meaning and names."""
    membership = Membership(1.0)
    registered = Registration(("ward-1",), np.array([9]), "pool", meaning=meaning, names=names)
    again = read_registration(registration_content(registered))
    membership.claims[7] = Claim(OnlineNode(7), again, 1)
    membership.admission = replace(membership.admission, admitted={7})
    membership.agreement = Agreement({COMMON: meaning})
    return membership


def test_a_table_without_a_category_is_found_by_name(tmp_path: Path) -> None:
    files = {name: ward(tmp_path / f"{name}.csv", ("age", "bmi"), seed=i) for i, name in enumerate(WARDS)}
    taken = take(played(tmp_path, files, policy={"ward-1": {}}) / "model.safetensors")
    assert "categories" not in taken.card.meaning.parts
    assert scored(taken, ward(tmp_path / "new.csv", ("bmi", "age"), "outcome:target(ill|well)", 9)) > 0.9
    run = played(tmp_path / "named", files, policy={"ward-1": {"names": True}})
    assert read_model(run / "model.safetensors")[0].columns == ("age", "bmi", "outcome")


def test_a_model_that_is_decrypted_is_used_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card is written with the encrypted model, and stays when a node's key opens that."""
    provision(tmp_path / "kits", "127.0.0.1:9092", WARDS, he=True)
    key, kit = tmp_path / "kits" / "ward-1" / ckks.KEY_FILE, tmp_path / "kits" / "link"
    monkeypatch.setenv(KIT, str(kit))
    files = {name: ward(tmp_path / f"{name}.csv", seed=i) for i, name in enumerate(WARDS)}
    policy = {name: {ckks.NODE_KEY: str(key)} for name in WARDS}
    keys = {"he": True, "fraction-evaluate": 1.0, "local-test-fraction": 0.25}
    taken = take(decrypt(played(tmp_path, files, policy=policy, **keys), key))
    turned = ("bmi", "job:category(nurse|clerk)", "extra", "age")
    assert scored(taken, ward(tmp_path / "new.csv", turned, "outcome:target(ill|well)", 9)) > 0.9


def arrays(path: Path, columns: tuple[str, ...], classes: tuple[str, ...], seed: int = 0) -> Path:
    """Write a table as in `ward` as an npz file, with its inputs and classes in any order."""
    rng = np.random.default_rng(seed)
    age, bmi, clerk = rng.random(60), rng.random(60), np.arange(60) % 2 == 0
    inputs = {"age": [age], "bmi": [bmi], "weight": [bmi]}
    inputs |= {
        "job:category(clerk|nurse)": [clerk, ~clerk],
        "job:category(nurse|clerk)": [~clerk, clerk],
    }
    y = np.where(age > 0.5, classes.index("ill"), classes.index("well"))
    x = np.stack([one for column in columns for one in inputs[column]], axis=1).astype(np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=x, y=y, columns=np.array(columns), classes=np.array(classes))
    return path


TURNED = ("job:category(nurse|clerk)", "bmi", "weight", "age")


@pytest.mark.parametrize("names", [True, False])
def test_columns_and_labels_of_an_npz_file_are_found_by_its_names(tmp_path: Path, names: bool) -> None:
    """By position the bmi would decide, and by number the other class."""
    files = {name: ward(tmp_path / f"{name}.csv", seed=i) for i, name in enumerate(WARDS)}
    run = played(tmp_path, files, policy={"ward-1": {"names": names}})
    taken = take(run / "model.safetensors")
    assert bool(taken.card.columns) is names
    path = arrays(tmp_path / "new.npz", TURNED, ("ill", "well"), 9)
    assert scored(taken, path) > 0.9
    found = predict(taken, read_examples(path, taken.card))
    assert [name for name, _ in found.columns()] == ["id", "predicted", "p_well", "p_ill"]
    with pytest.raises(DataError, match=r"expected (the columns|columns that give)"):
        read_examples(arrays(tmp_path / "less.npz", ("age", *TURNED[:1]), ("ill", "well")), taken.card)


def test_a_model_of_npz_files_finds_columns_and_labels_by_name(tmp_path: Path) -> None:
    order = ("age", "bmi", "job:category(clerk|nurse)")
    files = {
        name: arrays(tmp_path / f"{name}.npz", order, ("well", "ill"), i) for i, name in enumerate(WARDS)
    }
    taken = take(played(tmp_path, files, dataset="npz") / "model.safetensors")
    assert scored(taken, arrays(tmp_path / "new.npz", TURNED, ("ill", "well"), 9)) > 0.9


def numbers(path: Path, header: str, places: tuple[int, ...], seed: int) -> Path:
    """Write a table of x, which is a number, and of what follows from it: up = x, down = -3 x."""
    rng, lines = np.random.default_rng(seed), [header]
    for x, z in rng.random((60, 2)):
        cells = (x, z, x, -3 * x)
        lines.append(",".join(f"{cells[i]:.4f}" for i in places))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("names", [True, False])
def test_several_targets_are_found_by_name(tmp_path: Path, names: bool) -> None:
    """By position 'up' would be compared with the numbers of 'down'."""
    header = "x,z,up:target,down:target"
    files = {name: numbers(tmp_path / f"{name}.csv", header, (0, 1, 2, 3), i) for i, name in enumerate(WARDS)}
    # Other places of the targets at one site, whose names are those that are let out.
    files["ward-1"] = numbers(tmp_path / "ward-1.csv", "down:target,z,x,up:target", (3, 1, 0, 2), 1)
    keys = {"task": "regression", "num-classes": 2, "num-server-rounds": 30, "learning-rate": 0.3}
    run = played(tmp_path, files, policy={"ward-1": {"names": names}}, **keys)
    taken = take(run / "model.safetensors")
    path = numbers(tmp_path / "new.csv", "z,down:target,up:target,x", (1, 3, 2, 0), 9)
    found = predict(taken, read_examples(path, taken.card))
    assert found.scores["all"]["loss"] < 0.05
    columns = dict(found.columns())
    assert sorted(columns) == ["id", "predicted_down", "predicted_up"]
    assert np.mean(columns["predicted_down"]) < -1 < np.mean(columns["predicted_up"])
    lone = numbers(tmp_path / "lone.csv", "x,z,up:target", (0, 1, 2), 9)
    if names:
        with pytest.raises(DataError, match="expected all that the model predicts, or none of it"):
            read_examples(lone, taken.card)
    else:
        assert not read_examples(lone, taken.card).labelled
