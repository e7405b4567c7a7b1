"""Token ids, inputs by name and masks: what is read, what a model gets, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from task.datasets import Dataset, load_dataset, load_owned
from task.datasets.facts import facts_of
from task.datasets.facts_in_words import as_text
from task.errors import BouquetError, ConfigError
from task.inputs import read_form, unpacked
from task.models.adapt import Interface
from task.resolve.model_card import card_of
from task.resolve.model_checks import check_model
from task.resolve.read import read_config
from task.resolve.run_model import model_of
from task.tasks import task_of, with_task
from task.tasks.base import check_fits
from tests.support.brought import imported_from

IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0], [5, 3, 5, 8, 9], [7, 9, 3, 2, 0]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
NEXT = np.array([[1, 4, 1, 5, -100], [2, 6, -100, -100, -100], [3, 5, 8, 9, -100], [9, 3, 2, -100, -100]])
FORM = "attention_mask:int64[5] input_ids:int64[5]"
CLASSES = np.array([0, 1, 0, 1])


def npz(folder: Path, *, owned: bool = False, keys: Any = None, **arrays: np.ndarray) -> Dataset:
    np.savez(folder / "set.npz", **arrays)  # type: ignore[arg-type]
    given = {"dataset": "npz", "cache-dir": str(folder / "cache"), **(keys or {})}
    path = str(folder / "set.npz")
    if owned:
        return load_owned(read_config(given).data, path, "ward-1", 1)
    config = read_config(given | {"data-path": path})
    return load_dataset(config.data, config.synthetic, 1)


def as_read(data: Dataset, name: str = "input_ids") -> tuple[list[Any], list[Any]]:
    """Return an input and the targets of all rows, in the order of the first id."""
    x = data.inputs(slice(0, len(data.y)))
    ids = unpacked(x, data.form)[name] if ":" in data.form else x
    order = np.argsort(ids.flatten(1)[:, :2].tolist(), axis=0)[:, 0]
    return ids[order].tolist(), data.targets(slice(0, len(data.y)))[order].tolist()


ROWS = np.argsort(IDS[:, 0])


def test_ids_in_x_stay_integers_where_the_run_says_so(tmp_path: Path) -> None:
    numbers = npz(tmp_path, x=IDS, y=CLASSES)
    assert (numbers.kind, numbers.form, numbers.inputs(slice(0, 1)).dtype) == ("features", "", torch.float32)
    data = npz(tmp_path, x=IDS, y=CLASSES, keys={"inputs": "ids"})
    assert (data.kind, data.form, data.input_shape, data.task) == ("text", "int64[5]", (5,), "classification")
    assert data.inputs(slice(0, 1)).dtype == torch.int64
    assert as_read(data)[0] == IDS[ROWS].tolist()
    with pytest.raises(BouquetError, match=r"expected x as ids, integers .* got float64"):
        npz(tmp_path, x=IDS / 2, y=CLASSES, keys={"inputs": "ids"})
    with pytest.raises(BouquetError, match=r"ids from 0 .* got -1 in example 1"):
        npz(tmp_path, x=np.where(IDS == 9, -1, IDS), y=CLASSES, keys={"inputs": "ids"})


@pytest.mark.parametrize("labels", ["ids", "next", "none"])
def test_a_tokenizers_arrays_are_inputs_by_name_and_labels_are_shifted_once(
    tmp_path: Path, labels: str
) -> None:
    """Labels as `transformers` takes them, labels that are the next ids already, and none at all."""
    given = {"ids": {"labels": np.where(MASK == 1, IDS, -100)}, "next": {"labels": NEXT}, "none": {}}[labels]
    data = npz(tmp_path, input_ids=IDS, attention_mask=MASK, **given)
    assert (data.kind, data.form, data.task, data.num_classes) == ("text", FORM, "language", 10)
    assert as_read(data) == (IDS[ROWS].tolist(), NEXT[ROWS].tolist())
    assert as_read(data, "attention_mask")[0] != IDS[ROWS].tolist()
    assert ("inputs    " + FORM) in as_text(facts_of(data))


def test_labels_that_are_no_next_tokens_need_a_task_by_name(tmp_path: Path) -> None:
    tags = MASK * (IDS % 3)
    with pytest.raises(BouquetError, match=r'neither the ids nor .* task = "tagging"'):
        npz(tmp_path, input_ids=IDS, labels=tags)
    data = npz(tmp_path, input_ids=IDS, labels=tags, keys={"task": "tagging"})
    assert (data.num_classes, as_read(data)[1]) == (3, tags[ROWS].tolist())
    with pytest.raises(BouquetError, match=r"at least 10, as ids .* got 7"):
        npz(tmp_path, input_ids=IDS, keys={"num-classes": 7})


def test_inputs_of_other_kinds_keep_their_dtypes_and_shapes(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).normal(size=(4, 1, 2, 3)).astype(np.float32)
    age, ill = np.array([0.1, 2.5, 3.5, 4.5], np.float32), np.array([True, False, True, True])
    big = np.array([2**31 - 1, 1, 2, 3])
    arrays = {"x.picture": picture, "x.age": age, "x.ill": ill, "x.number": big}
    data = npz(tmp_path, y=CLASSES, **arrays)
    assert data.form == "age:float32[] ill:bool[] number:int64[] picture:float32[1,2,3]"
    assert (data.kind, data.task) == ("mixed", "classification")
    found = unpacked(data.inputs(slice(0, 4)), data.form)
    order = np.argsort(found["age"].numpy())
    for name, want in arrays.items():
        got = found[name.removeprefix("x.")].numpy()[order]
        assert np.array_equal(got, want[np.argsort(age)])
        assert got.dtype == want.dtype


def test_csv_columns_of_tokens(tmp_path: Path) -> None:
    lines = [
        "w1:token,w2:token,who:ignore,label",
        *(f"{a},{b},x,{c}" for a, b, c in [(16777217, 2, 0), (3, 4, 1), (5, 6, 1)]),
    ]
    path = tmp_path / "set.csv"

    def read(text: str, **keys: Any) -> Dataset:
        path.write_text(text)
        given = {"dataset": "csv", "data-path": str(path), "cache-dir": str(tmp_path / "cache"), **keys}
        return load_dataset(read_config(given).data, read_config(given).synthetic, 1)

    data = read("\n".join(lines))
    assert (data.form, data.kind, data.columns) == ("int64[2]", "text", ())
    assert sorted(data.inputs(slice(0, 3)).tolist()) == [[3, 4], [5, 6], [16777217, 2]]  # no float32 has it
    with pytest.raises(BouquetError, match=r'line 3, column 1 "w1": expected the id of a token'):
        read("\n".join(lines).replace("3,4", "3.5,4"))
    with pytest.raises(BouquetError, match="all features to be tokens"):
        read("\n".join(lines).replace("w2:token", "w2"))
    with pytest.raises(BouquetError, match="which rows of a csv file"):
        read("\n".join(lines), task="language")


def test_a_saved_set_of_a_tokenizer_at_a_node_and_in_the_pool(tmp_path: Path) -> None:
    rows = {"input_ids": IDS.tolist(), "attention_mask": MASK.tolist(), "text": ["a", "b", "c", "d"]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"))
    keys = {"dataset": "arrow", "cache-dir": str(tmp_path / "cache")}
    config = read_config(keys | {"data-path": str(tmp_path / "set")})
    pooled = load_dataset(config.data, config.synthetic, 1)
    assert (pooled.form, pooled.task) == (FORM, "language")
    assert as_read(pooled) == (IDS[ROWS].tolist(), NEXT[ROWS].tolist())
    assert "1 columns are not read: text" in pooled.notes

    def owned(**more: Any) -> Dataset:
        return load_owned(read_config(keys | more).data, str(tmp_path / "set"), "ward-1", 1)

    with pytest.raises(ConfigError, match=r'expected inputs = "attention_mask:int64.5. input_ids:int64.5."'):
        owned(**{"num-classes": 10, "task": "language"})
    data = owned(**{"num-classes": 10, "task": "language", "inputs": FORM})
    assert as_read(data) == (IDS[ROWS].tolist(), NEXT[ROWS].tolist())
    with pytest.raises(
        BouquetError, match=r'expected "attention_mask:.* is here.*; got "input_ids:int64\[9\]"'
    ):
        owned(**{"num-classes": 10, "task": "language", "inputs": "input_ids:int64[9]"})
    with pytest.raises(ConfigError, match='"inputs": expected "auto", "ids", or'):
        read_form("input_ids:int9[3]")


def test_boxes_of_objects_are_refused_with_a_sentence(tmp_path: Path) -> None:
    rows = {"pixels": [[0.5], [1.5]], "label": [0, 1], "bbox": [[[0.0, 1.0]], [[1.0, 2.0], [3.0, 4.0]]]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"))
    config = read_config(
        {"dataset": "arrow", "data-path": str(tmp_path / "set"), "cache-dir": str(tmp_path / "cache")}
    )
    with pytest.raises(BouquetError, match=r"bbox.* boxes of objects, are those of no task"):
        load_dataset(config.data, config.synthetic, 1)
    (tmp_path / "boxes.py").write_text(
        "import numpy as np\n"
        "def load():\n"
        "    rows = [(np.zeros((1, 4, 4)), {'boxes': np.zeros((n, 4))}) for n in (1, 2)]\n"
        "    return rows, rows\n"
        "def ragged():\n"
        "    rows = [(np.zeros((1, 4, 4)), np.zeros((n, 4))) for n in (1, 2)]\n"
        "    return rows, rows\n"
    )
    with imported_from(tmp_path):
        for name in ("load", "ragged"):
            config = read_config({"dataset": f"boxes:{name}", "cache-dir": str(tmp_path / "cache")})
            with pytest.raises(BouquetError, match="boxes of objects, are those of no task"):
                load_dataset(config.data, config.synthetic, 1)


def test_code_may_return_dicts_of_arrays_or_examples_that_are_dicts(tmp_path: Path) -> None:
    """The same form and rows; without labels the next tokens are what is predicted."""
    (tmp_path / "texts.py").write_text(
        "import numpy as np\n"
        f"ids, mask, kind = np.array({IDS.tolist()}), np.array({MASK.tolist()}), np.array([0, 1, 0, 1])\n"
        "x = {'input_ids': ids, 'attention_mask': mask}\n"
        "rows = [{'input_ids': ids[i], 'attention_mask': mask[i]} for i in range(4)]\n"
        "def arrays(): return x, kind, x, kind\n"
        "def pairs(): return ([(row, k) for row, k in zip(rows, kind)],) * 2\n"
        "def named(): return ([{**row, 'label': k} for row, k in zip(rows, kind)],) * 2\n"
        "def alone(): return rows, rows\n"
        "def plain(): return ids, kind, ids, kind\n"
    )

    def read(name: str, **keys: Any) -> Dataset:
        config = read_config({"dataset": f"texts:{name}", "cache-dir": str(tmp_path / "cache"), **keys})
        return load_dataset(config.data, config.synthetic, 1)

    with imported_from(tmp_path):
        for name in ("arrays", "pairs", "named"):
            data = read(name)
            assert (data.form, data.task, data.num_train) == (FORM, "classification", 4)
            assert data.y.tolist() == [0, 1, 0, 1] * 2
            assert unpacked(data.inputs(slice(0, 4)), FORM)["input_ids"].tolist() == IDS.tolist()
        assert read("alone").targets(slice(0, 4)).tolist() == NEXT.tolist()
        assert read("plain", inputs="ids").form == "int64[5]"
        assert read("plain").form == ""


LM = """
import torch
from torch import nn

class LM(nn.Module):
    def __init__(self, input_shape, num_classes, rows=0, form="dict"):
        super().__init__()
        assert input_shape == {"attention_mask": (5,), "input_ids": (5,)}
        self.embedding, self.head = nn.Embedding(rows or num_classes, 4), nn.Linear(4, num_classes)
        self.form = form

    def forward(self, input_ids, attention_mask):
        assert input_ids.dtype == attention_mask.dtype == torch.int64
        z = self.head(self.embedding(input_ids) * attention_mask[..., None])
        return {"dict": {"logits": z}, "tuple": (z, input_ids), "tensor": z}[self.form]

def short(input_shape, num_classes): return LM(input_shape, num_classes, rows=9)
def as_tuple(input_shape, num_classes): return LM(input_shape, num_classes, form="tuple")
def as_tensor(input_shape, num_classes): return LM(input_shape, num_classes, form="tensor")

class Floats(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(20, num_classes)

    def forward(self, x):
        return self.head(self.embedding(x).flatten(1))

class Sequence(Floats):
    def forward(self, x):
        assert x.dtype == torch.int64
        return {"logits": super().forward(x)}

def own(outputs, y):
    return nn.functional.cross_entropy(outputs["logits"].movedim(2, 1), y, reduction="none")
"""


def test_a_model_is_called_by_name_and_its_logits_are_found(tmp_path: Path) -> None:
    data = npz(tmp_path, input_ids=IDS, attention_mask=MASK)
    (tmp_path / "lm.py").write_text(LM)
    with imported_from(tmp_path):
        for model, loss in (("LM", ""), ("as_tuple", ""), ("as_tensor", ""), ("LM", "lm:own")):
            config = with_task(read_config({"model": f"lm:{model}", "loss": loss}), data.task, data.form)
            check_model(config, data.input_shape, data.num_classes, data.task, data)
            task = task_of(config, data.task, data.num_classes)
            made = model_of(config, data.input_shape, data.num_classes)
            check_fits(task, made, data)
            x, y = data.inputs(slice(0, 2)), data.targets(slice(0, 2))
            outputs = made(x)
            assert isinstance(outputs, dict) == bool(loss)
            assert task.main(outputs).shape == (2, 10, 5)
            each = task.each(outputs, y)
            assert each.shape == (2,)
            assert each.tolist() == pytest.approx((y >= 0).sum(1).mul(np.log(10)).tolist(), rel=0.5)
        config = with_task(read_config({"model": "lm:short"}), data.task, data.form)
        with pytest.raises(BouquetError, match=r"ids below 9, .* in input_ids; got 9 at place \d of example"):
            check_fits(
                task_of(config, data.task, 10), model_of(config, data.input_shape, data.num_classes), data
            )
        floats = npz(tmp_path, x=IDS, y=CLASSES)
        config = with_task(read_config({"model": "lm:Floats"}), floats.task, floats.form)
        with pytest.raises(
            BouquetError, match='If they are ids of tokens, set the run-config key inputs = "ids"'
        ):
            check_fits(task_of(config, "classification", 2), model_of(config, (5,), 2), floats)
        ids = npz(tmp_path, x=IDS, y=CLASSES, keys={"inputs": "ids"})
        config = with_task(read_config({"model": "lm:Sequence", "inputs": "ids"}), ids.task, ids.form)
        check_model(config, (5,), 2, ids.task, ids)  # one class of a text: logits [B, C]


def test_a_models_card_knows_what_it_reads(tmp_path: Path) -> None:
    data = npz(tmp_path, input_ids=IDS, attention_mask=MASK)
    config = with_task(read_config({"model": "lm:LM", "dataset": "npz"}), data.task, data.form)
    card = card_of(config, data.input_shape, data.num_classes, data)
    assert (card.task, card.config.data.inputs, card.kind) == ("language", FORM, "text")


def test_made_up_examples_have_ids_of_the_vocabulary_and_a_masked_end() -> None:
    x = Interface(FORM).examples(2)
    found = unpacked(x, FORM)
    assert found["attention_mask"].tolist() == [[1, 1, 1, 1, 0]] * 2
    assert found["input_ids"].unique().tolist() == [0]


def draw(path: Path, pixels: Any, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(pixels, np.uint8))
    if mode == "P":
        image = Image.frombytes("P", image.size, image.tobytes())
        image.putpalette([200, 0, 90] * 256)
    image.save(path)


def folder(root: Path, **keys: Any) -> Dataset:
    given = {
        "dataset": "imagefolder",
        "data-path": str(root),
        "cache-dir": str(root.parent / "cache"),
        **keys,
    }
    config = read_config(given)
    return load_dataset(config.data, config.synthetic, 1)


@pytest.mark.parametrize("style", ["train/images", "images/train"])
def test_a_folder_of_pictures_with_masks(tmp_path: Path, style: str) -> None:
    masks = {"a": [[0, 1, 2], [0, 0, 255]], "b": [[0] * 3] * 2, "c": [[2] * 3] * 2}
    for name, values in masks.items():
        at = style if name != "c" else style.replace("train", "test")
        draw(tmp_path / "set" / at / f"{name}.png", [[9 + ord(name)] * 3] * 2)
        end = "_mask" if name == "b" else ""
        draw(tmp_path / "set" / at.replace("images", "masks") / f"{name}{end}.png", values, "P")
    draw(tmp_path / "set" / "preview.png", [[1, 2]])
    data = folder(tmp_path / "set")
    assert (data.task, data.kind, data.num_classes, data.num_train) == ("segmentation", "image", 3, 2)
    assert data.x[:, 0, 0, 0].tolist() == [9 + ord(name) for name in "abc"]
    assert data.y.tolist() == [[[0, 1, 2], [0, 0, -100]], masks["b"], masks["c"]]
    assert any("preview.png" in note for note in data.notes)
    line = "targets   one of 3 classes at each of 2x3 places, of which 94.4% count"
    assert line in as_text(facts_of(data))
    assert data.telling(2).tolist() == [0, 1]
    with pytest.raises(BouquetError, match=r"expected classes 0..1 .* got 2 at \[0, 2\] of example 0"):
        folder(tmp_path / "set", **{"num-classes": 2})


def test_masks_of_0_and_255_are_two_classes_in_a_pool_and_refused_at_a_node(tmp_path: Path) -> None:
    for name in "ab":
        draw(tmp_path / "set" / "images" / f"{name}.png", [[7, 8]])
        draw(tmp_path / "set" / "masks" / f"{name}.png", [[0, 255]])
    data = folder(tmp_path / "set")
    assert data.y.tolist() == [[[0, 1]]] * 2
    assert "read as the classes 0 and 1" in data.notes[-1]
    config = read_config(
        {"dataset": "imagefolder", "num-classes": 2, "task": "segmentation", "cache-dir": str(tmp_path)}
    )
    with pytest.raises(BouquetError, match="not clear whether 255 is a class"):
        load_owned(config.data, str(tmp_path / "set"), "ward-1", 1)
    draw(tmp_path / "set" / "masks" / "b.png", [[0, 1]])
    assert load_owned(config.data, str(tmp_path / "set"), "ward-1", 1).y[:, 0].tolist() in (
        [[0, -100], [0, 1]],
        [[0, 1], [0, -100]],
    )
    Image.new("RGB", (2, 1)).save(tmp_path / "set" / "masks" / "a.png")
    with pytest.raises(BouquetError, match=r"masks/a.png is of mode RGB; expected a mask with"):
        folder(tmp_path / "set")
    (tmp_path / "set" / "masks" / "a.png").unlink()
    with pytest.raises(BouquetError, match=r"a mask of each picture, .* none of images/a.png"):
        folder(tmp_path / "set")


def test_maps_that_do_not_fit_their_pictures_are_refused(tmp_path: Path) -> None:
    x, y = np.zeros((4, 6, 5), np.uint8), np.zeros((4, 6, 5), np.int64)
    y[1, 2, 3] = 1
    assert npz(tmp_path, x=x, y=y).num_classes == 2
    assert npz(tmp_path, x=x[:, None], y=y[:, None]).y.shape == (4, 6, 5)
    with pytest.raises(BouquetError, match=r"y .N, H, W. of the height and width of the pictures"):
        npz(tmp_path, x=x, y=y.transpose(0, 2, 1))
    with pytest.raises(
        BouquetError, match=r"expected classes 0, 1, .*, or -100 .* got -3 at \[2, 3\] of example 1"
    ):
        npz(tmp_path, x=x, y=-3 * y)
    with pytest.raises(BouquetError, match="all are -100"):
        npz(tmp_path, x=x, y=np.full_like(y, -100))
    with pytest.raises(BouquetError, match="or the class of each pixel, integers"):
        npz(tmp_path, x=x, y=y.astype(np.float32))
    void = y.astype(np.uint8)
    void[0, 0, 0] = 255
    assert int((npz(tmp_path, x=x, y=void).y == -100).sum()) == 1


def test_a_trial_sees_two_classes_though_the_first_masks_are_empty(tmp_path: Path) -> None:
    x, y = np.zeros((9, 4, 4), np.uint8), np.zeros((9, 4, 4), np.int64)
    y[0], y[1, 0] = -100, -100
    y[6, 1], y[7, 0, 0] = 1, 1
    data = npz(tmp_path, x=x, y=y, x_test=x[:1], y_test=y[:1])
    assert data.telling(2).tolist() == [6, 7]
    assert data.telling(3, np.array([8, 7, 0])).tolist() == [7, 8, 0]
