"""The page on texts and masks: its models under algorithms and features."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.takeout.examples import read_examples
from server_app.takeout.export import export
from server_app.takeout.model import take
from server_app.takeout.predict import own_examples, predict
from task import trust
from task.errors import DataError
from tests.support.brought import imported_from
from tests.support.texts_and_masks import commands, run, write_modules


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the page's modules."""
    write_modules(tmp_path)
    with imported_from(tmp_path):
        yield tmp_path


def test_the_language_model_learns_and_its_perplexity_falls(folder: Path) -> None:
    """From that of a guess among 12 tokens to near exp(-.9 ln .9 - .1 ln .009) = 1.76."""
    rows = run(folder, commands()["words"]).rounds()
    assert rows[0]["perplexity"] > 10
    assert rows[-1]["perplexity"] < 2.5
    assert rows[-1]["accuracy"] > 0.8


def test_outputs_in_any_form_any_nodes_and_a_saved_set_end_in_one_model(folder: Path) -> None:
    """A dict, a tuple and a tensor of the same logits, a tokenizer's set on disk, and sums under masks."""
    import datasets
    import words  # type: ignore[import-not-found]

    x, labels, test, test_labels = words.load()
    parts = {"train": {**x, "labels": labels}, "test": {**test, "labels": test_labels}}
    made = {part: {name: a.tolist() for name, a in rows.items()} for part, rows in parts.items()}
    sets = {part: datasets.Dataset.from_dict(rows) for part, rows in made.items()}
    datasets.DatasetDict(sets).save_to_disk(str(folder / "set"))
    (folder / "forms.py").write_text(
        "import lm\n"
        "class Tuple(lm.LM):\n"
        "    def forward(self, **x): return (super().forward(**x)['logits'], x['input_ids'])\n"
        "class Tensor(lm.LM):\n"
        "    def forward(self, **x): return super().forward(**x)['logits']\n"
    )
    keys = commands()["words"] | {"num-server-rounds": 1, "local-epochs": 1}
    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "dict": (1, {}),
        "tuple": (2, {"model": "forms:Tuple"}),
        "tensor": (2, {"model": "forms:Tensor"}),
        "saved": (1, {"dataset": "arrow", "data-path": str(folder / "set")}),
        "masked": (3, {"secagg": True}),
    }
    rows = {way: run(folder, keys | more, nodes, way).rounds()[1] for way, (nodes, more) in ways.items()}
    assert len({row["model_sha256"] for row in rows.values()}) == 1
    assert len({row["perplexity"] for row in rows.values()}) == 1


@pytest.mark.parametrize(
    ("data", "more"),
    [
        ("words", {"algorithm": "scaffold"}),
        ("words", {"algorithm": "ditto", "fraction-evaluate": 1.0, "local-test-fraction": 0.2}),
        ("words", {"algorithm": "fedper", "fraction-evaluate": 1.0}),
        (
            "circles",
            {"dp.noise": 0.5, "dp.clip": 1.0, "dp.unit": "example", "max-examples": 9, "batch-size": 3},
        ),
        ("circles", {"algorithm": "qfedavg", "loss": "cross-entropy", "fraction-evaluate": 1.0}),
        ("circles", {"codec.up": "int8", "selection": "power-of-choice"}),
    ],
)
def test_algorithms_and_features(folder: Path, data: str, more: dict[str, Any]) -> None:
    keys = commands()[data] | {"num-server-rounds": 1, "local-epochs": 1, "max-examples": 40} | more
    rows = run(folder, keys).rounds()
    assert rows[1]["quarantined"] == []
    assert rows[1]["model_sha256"] != rows[0]["model_sha256"]


def test_what_needs_one_class_an_example_is_refused(folder: Path) -> None:
    for data, more, words in (
        ("circles", {"algorithm": "fedlc"}, "expected"),
        ("circles", {"attack.kind": "label-flip", "attack.fraction": 0.4}, "trains on other classes"),
        ("words", {"dp.noise": 0.5, "dp.clip": 1.0, "dp.unit": "example"}, "one example of a text"),
        ("words", {"augment": "crops-flips"}, "a text, or several inputs"),
    ):
        with pytest.raises(Exception, match=words):
            run(folder, commands()[data] | more)
    assert not (folder / "runs").exists() or not list((folder / "runs").glob("*/model.safetensors"))


def test_an_augmented_run_draws_alike_on_any_nodes_and_after_a_resume(folder: Path) -> None:
    short = {"local-epochs": 1, "num-server-rounds": 2, "max-examples": 20}
    keys = commands()["circles"] | {"augment": "crops-flips"} | short
    ends = {n: run(folder, keys, n, f"on-{n}").rounds()[2]["model_sha256"] for n in (1, 3)}
    run(folder, keys | {"num-server-rounds": 1}, 2, "again")
    resumed = run(folder, keys | {"resume": True}, 3, "again").rounds()[2]["model_sha256"]
    other = run(folder, keys | {"train-seed": 77}, 1, "other").rounds()[2]["model_sha256"]
    plain = run(folder, keys | {"augment": ""}, 1, "plain").rounds()[2]["model_sha256"]
    assert len({*ends.values(), resumed}) == 1
    assert len({ends[1], other, plain}) == 3


def test_what_was_read_is_in_the_results_and_new_texts_are_predicted(folder: Path) -> None:
    """Of a file with labels the loss; of one without the tokens alone, one cell an example."""
    import words

    result = run(folder, commands()["words"] | {"num-server-rounds": 1, "max-examples": 20})
    data = json.loads((result.path / "config.json").read_text())["data"]
    assert data["form"] == "attention_mask:int64[10] input_ids:int64[10]"
    assert data["places"]["shape"] == [10]
    assert 0 < data["places"]["counted"] < 1
    trust.allow(["lm", "words"], "the test")
    taken = take(result.path)
    _, _, x, labels = words.load()
    np.savez(folder / "new.npz", **x, labels=labels)
    found = predict(taken, read_examples(folder / "new.npz", taken.card))
    assert found.scores["all"]["loss"] == pytest.approx(result.result()["loss"], rel=1e-5)
    assert found.scores == predict(taken, own_examples(taken)).scores
    (_, _), (name, cells) = found.columns()
    assert name == "predicted"
    assert cells[0].split() == [str(c) for c in found.probabilities[0].argmax(0)]
    made = export(taken, "torchscript", folder / "lm.pt", read_examples(folder / "new.npz", taken.card))
    assert made.difference < 1e-6


def test_masks_of_new_pictures_are_predicted(folder: Path) -> None:
    import circles  # type: ignore[import-not-found]

    short = {"num-server-rounds": 1, "max-examples": 9, "local-epochs": 1}
    taken_from = run(folder, commands()["circles"] | short).path
    trust.allow(["unet", "circles"], "the test")
    taken = take(taken_from)
    _, _, x, y = circles.load()
    np.savez(folder / "new.npz", x=x, y=y)
    np.savez(folder / "alone.npz", x=x)
    labelled, alone = (
        predict(taken, read_examples(folder / f"{n}.npz", taken.card)) for n in ("new", "alone")
    )
    assert labelled.scores == predict(taken, own_examples(taken)).scores
    assert alone.scores == {}
    assert labelled.columns() == alone.columns()
    np.savez(folder / "bad.npz", x=x, y=y[:, :8])
    with pytest.raises(DataError, match=r"y .N, H, W. of the height and width"):
        read_examples(folder / "bad.npz", taken.card)
