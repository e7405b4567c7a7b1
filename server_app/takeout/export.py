"""Export a run's model, and check that the exported one gives the same outputs.

============  ===================================================================  =========================
format        what is written                                                      read it with
============  ===================================================================  =========================
onnx          a graph, opset 17, input ``x``, output ``probabilities``             ``onnxruntime``
torchscript   the same as a traced module                                          ``torch.jit.load``
safetensors   all arrays by name, and what the model is, as metadata               ``safetensors``, `bouquet`
state-dict    all arrays by name                                                   ``torch.load``
============  ===================================================================  =========================

The first two read examples as they are in files, ``x`` float32 [N, ...] with any N: pixels from 0 on or the
columns of a table (int64 bytes for text); the scaling of the training and the softmax are in them. int8
stands for weights of linear layers in 8 bits, with scales that are found at run time (dynamic quantisation);
in safetensors for matrices and kernels as codes with a scale for each output channel (`task.numerics.int8`),
which `bouquet predict` reads as it reads the file in float32, and which say in their metadata what they cost.

The first two say what they are, too: ``bouquet`` as in safetensors (`task.resolve.model_card`), and
``inputs`` and ``outputs``, JSON lists of the names of the columns of x and of probabilities. ONNX has them
as metadata (``session.get_modelmeta().custom_metadata_map``), TorchScript as files
(``torch.jit.load(path, _extra_files={"inputs": ""})``).
"""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from server_app.takeout.examples import Input
from server_app.takeout.model import TakenModel
from server_app.takeout.predict import Prediction, answer, predict
from task.datasets import Dataset
from task.datasets.base import centre, standardised
from task.datasets.columns import layout_of, prepared
from task.errors import BouquetError, ConfigError
from task.extras import from_extra
from task.models import WORD_BUCKETS
from task.numerics import int8 as codes
from task.numerics.arrays import Arrays, state_of
from task.resolve.model_card import ModelCard, read_model
from task.resolve.run_model import model_of
from task.storage.files import replacing, write_safetensors
from task.tasks import TASKS
from task.tasks.evaluate import BATCH

SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "safetensors": ".safetensors", "state-dict": ".pth"}
GRAPHS = ("onnx", "torchscript")  # formats that hold a program
TOLERANCE = 1e-5  # of a probability
OPSET = 17
SAMPLE = 64  # random examples, where there are none

Answer = Callable[[np.ndarray], np.ndarray]  # probabilities of raw examples


class Deployed(nn.Module):
    """A model that reads raw examples, as they are in files, and gives what `predict` says of them."""

    def __init__(self, model: nn.Module, data: Dataset, task: str = "classification") -> None:
        super().__init__()
        self.task = task
        self.model, self.image, self.scale = model, data.kind == "image", data.scale
        self.preparation, self.crop, self.standardised = data.preparation, data.crop, data.standardised
        self.mean: torch.Tensor
        self.std: torch.Tensor
        self.register_buffer("mean", torch.tensor(data.mean).reshape(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(data.std).reshape(1, -1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return probabilities [N, C] (text [N, C, T]), or numbers [N, d], of raw examples [N, ...]."""
        if self.image:
            x = centre(x / self.scale, self.crop)
            x = standardised(x, self.scale) if self.standardised else (x - self.mean) / self.std
        elif self.preparation:
            x = self.preparation(x)
        return answer(self.model(x), self.task)


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    size: int  # bytes
    difference: float  # largest of a probability, exported against ours
    scores: dict[str, tuple[float, float]]  # of int8 with targets: "loss" and "accuracy" before and after
    float_size: int = 0  # of int8: bytes of the same format in float32

    def lines(self) -> list[str]:
        """Return what to tell the user."""
        found = [f"{self.path.resolve()}: {self.size:,} bytes, largest difference {self.difference:.1e}"]
        if self.float_size:
            found[0] += f" from float32, which takes {self.float_size:,} bytes"
            if not self.scores:
                found.append(
                    "the effect of int8 was not measured: no labelled examples; give some with --data"
                )
        return found + [f"{k}: {a:.4f} in float32, {b:.4f} in int8" for k, (a, b) in self.scores.items()]


def export(
    taken: TakenModel, form: str, path: Path, examples: Input | None, *, int8: bool = False
) -> Exported:
    """Write a model and check its outputs on examples, or on random ones if there are none.

    Raises:
        ConfigError: No such format, one that has no int8, or its extra is not installed.
        BouquetError: The exported model answers otherwise; nothing was written.
    """
    if form not in SUFFIXES:
        raise ConfigError(f"--format: expected one of {', '.join(SUFFIXES)}; got {form!r}")
    if int8 and form == "state-dict":
        raise ConfigError(f"--int8: expected --format onnx, torchscript or safetensors; got {form}")
    own = taken.model
    fresh = model_of(taken.card.config, taken.card.input_shape, taken.card.num_classes)
    if own.state_dict().keys() != fresh.state_dict().keys():
        raise ConfigError(
            f"export: expected a single model; got {type(own).__name__.lower()}: a client of "
            f"{taken.card.config.algorithm} predicts with several models. Use bouquet predict"
        )
    labelled = examples is not None and examples.labelled and TASKS[taken.card.task].classes
    given, examples = examples, examples or _random(taken.card)
    before = predict(taken, examples)
    before = before if given else replace(before, scores={})
    ours = before.probabilities
    x = _raw(examples)
    said = _said(taken, x, examples.data, before.classes)
    with replacing(path) as temp, _quiet():
        answer = _write(taken, form, temp, x, examples.data, said)
        theirs = _answers(answer, x)
        difference = checked_difference(form, theirs, ours)
        if not int8:
            return Exported(path, temp.stat().st_size, difference, {})
        float_size = temp.stat().st_size
        if form == "safetensors":
            return _write_codes(taken, path, temp, examples, before)
        theirs = _answers(_quantise(taken, form, temp, x, examples.data, said), x)
        y = examples.data.targets(examples.rows).numpy()
        scores = _compared(ours, theirs, y) if labelled else {}
        return Exported(path, temp.stat().st_size, _largest(theirs, ours), scores, float_size)


def _said(taken: TakenModel, x: np.ndarray, data: Dataset, outputs: Sequence[str]) -> dict[str, str]:
    """Return what a written graph says of itself; the examples may name what the model's file does not."""
    columns = (data.columns or taken.card.columns) if x.ndim == 2 and data.kind == "features" else ()
    names = {"inputs": layout_of(columns, x.shape[1])[2], "outputs": outputs}
    return _card(taken).metadata() | {what: json.dumps(found) for what, found in names.items()}


def _write_codes(taken: TakenModel, path: Path, temp: Path, examples: Input, before: Prediction) -> Exported:
    """Replace a written model file by one of 8-bit codes, which says what they cost on these examples."""
    float_size = temp.stat().st_size
    arrays = codes.quantised(state_of(taken.model))
    after = predict(replace(taken, model=_loaded(taken.card, codes.restored(arrays))), examples)
    scores, cost = dict[str, tuple[float, float]](), dict[str, Any]()
    if before.scores:
        old, new = before.scores["all"], after.scores["all"]
        scores = {k: (old[k], new[k]) for k in ("loss", "accuracy") if k in old}
        cost = {**{k: list(pair) for k, pair in scores.items()}, "examples": old["examples"]}
    write_safetensors(temp, arrays, _card(taken, cost).metadata())
    difference = _largest(after.probabilities, before.probabilities)
    return Exported(path, temp.stat().st_size, difference, scores, float_size)


def checked_difference(form: str, theirs: np.ndarray, ours: np.ndarray) -> float:
    """Return the largest difference of an exported model's answers from ours.

    Raises:
        BouquetError: It is too large.
    """
    difference = _largest(theirs, ours)
    if not difference <= TOLERANCE:
        raise BouquetError(
            f"export: expected outputs of the {form} model within {TOLERANCE:g} of ours; got a difference of "
            f"{difference:.1e}. Nothing was written"
        )
    return difference


def _largest(theirs: np.ndarray, ours: np.ndarray) -> float:
    if theirs.shape != ours.shape:
        return float("inf")
    # Of numbers beyond 1 the relative one.
    return float((np.abs(theirs - ours) / np.maximum(np.abs(ours), 1.0)).max(initial=0.0))


def _compared(ours: np.ndarray, theirs: np.ndarray, y: np.ndarray) -> dict[str, tuple[float, float]]:
    def scores(p: np.ndarray) -> tuple[float, float]:
        mask = y >= 0
        right = np.take_along_axis(p, np.where(mask, y, 0)[:, None], 1)[:, 0][mask].astype(np.float64)
        return float(-np.log(np.maximum(right, 1e-30)).mean()), float((p.argmax(1) == y)[mask].mean())

    before, after = scores(ours), scores(theirs)
    return {"loss": (before[0], after[0]), "accuracy": (before[1], after[1])}


def _random(card: ModelCard) -> Input:
    if not card.kind or card.moments or card.config.data.missing != "refuse":
        raise ConfigError(
            "--data: expected examples to compare the outputs on, since only the nodes of this run have data"
        )
    rng = np.random.default_rng(0)
    size, words = (SAMPLE, *card.input_shape), card.kind == "text" and card.task != "language"
    features = card.kind == "features"
    x = (
        rng.standard_normal(size, np.float32)
        if features
        else rng.integers(0, WORD_BUCKETS, size, np.int32)
        if words
        else rng.integers(0, 256, size, np.uint8)
    )
    data = Dataset(
        name="random", x=x, y=np.zeros(SAMPLE, np.int64), num_train=0, num_classes=card.num_classes,
        input_shape=card.input_shape, kind=card.kind, scale=card.scale, mean=card.mean, std=card.std,
    )  # fmt: skip
    data = prepared(data, card.config.data)
    return Input(data, np.arange(SAMPLE), [str(i) for i in range(SAMPLE)], False)


def _raw(examples: Input) -> np.ndarray:
    """Return examples as the exported model reads them."""
    data = examples.data
    if data.drawn is not data:  # with a condition behind the pixels
        return data.inputs(examples.rows).numpy()
    x = np.asarray(data.x[examples.rows])
    if data.kind == "text":
        return x.astype(np.int64)
    if data.skew:
        pixels = torch.from_numpy(x).float().reshape(len(x), *data.whole_shape) / data.scale
        return (data.skew(pixels, examples.rows) * data.scale).numpy()
    return (x if data.preparation else x.reshape(len(x), *data.whole_shape)).astype(np.float32)


def _answers(answer: Answer, x: np.ndarray) -> np.ndarray:
    return np.concatenate([answer(x[i : i + BATCH]) for i in range(0, len(x), BATCH)])


def _write(
    taken: TakenModel, form: str, path: Path, x: np.ndarray, data: Dataset, said: dict[str, str]
) -> Answer:
    """Write a model in float32 and return how the written one answers."""
    if form in GRAPHS:
        deployed = Deployed(taken.model, data, taken.card.task).eval()
        return (_write_onnx if form == "onnx" else _write_script)(deployed, path, x, said)
    if form == "safetensors":
        write_safetensors(path, state_of(taken.model), _card(taken).metadata())
        model = _loaded(taken.card, read_model(path)[1])
    else:
        torch.save(taken.model.state_dict(), path)
        model = model_of(taken.card.config, taken.card.input_shape, taken.card.num_classes)
        model.load_state_dict(torch.load(path, weights_only=True))
    return _of_module(Deployed(model, data, taken.card.task).eval())


def _card(taken: TakenModel, int8: dict[str, Any] | None = None) -> ModelCard:
    names = {"run_name": taken.config.run_name} | ({"client": taken.client} if taken.client else {})
    return replace(taken.card, taken={**taken.card.taken, **names}, int8=int8)


def _loaded(card: ModelCard, arrays: Arrays) -> nn.Module:
    model = model_of(card.config, card.input_shape, card.num_classes)
    model.load_state_dict({name: torch.from_numpy(a) for name, a in arrays.items()})
    return model.eval()


def _of_module(module: Callable[[torch.Tensor], torch.Tensor]) -> Answer:
    def answer(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(x)).numpy()

    return answer


def _write_script(deployed: nn.Module, path: Path, x: np.ndarray, said: dict[str, str]) -> Answer:
    with torch.no_grad():
        jit: Any = torch.jit
        jit.trace(deployed, torch.from_numpy(x[:2]), check_trace=False).save(str(path), _extra_files=said)
    return _of_module(jit.load(str(path)))


def _write_onnx(deployed: Deployed, path: Path, x: np.ndarray, said: dict[str, str]) -> Answer:
    importable("onnxruntime", "onnx")
    axes = {"x": {0: "examples"}, "probabilities": {0: "examples"}}
    if deployed.crop:  # images of any size that is large enough
        axes["x"] |= {2: "height", 3: "width"}
    # The newer exporter would need a further package, onnxscript.
    torch.onnx.export(
        deployed, (torch.from_numpy(x[:2]),), str(path), input_names=["x"], output_names=["probabilities"],
        dynamic_axes=axes, opset_version=OPSET, dynamo=False,
    )  # fmt: skip
    return _of_onnx(path, said)


def _of_onnx(path: Path, said: dict[str, str]) -> Answer:
    onnx = importable("onnx")
    graph = onnx.load(str(path))
    onnx.helper.set_model_props(graph, said)
    onnx.save(graph, str(path))
    runtime = importable("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: np.asarray(session.run(None, {"x": x})[0])


def _quantise(
    taken: TakenModel, form: str, path: Path, x: np.ndarray, data: Dataset, said: dict[str, str]
) -> Answer:
    """Replace a written graph by one with weights of 8 bits and return how that one answers."""
    if form == "torchscript":
        deployed = Deployed(taken.model, data, taken.card.task).eval()
        quantisation: Any = torch.ao.quantization
        small = quantisation.quantize_dynamic(deployed, {nn.Linear, nn.LSTM}, dtype=torch.qint8)
        return _write_script(small, path, x, said)
    quantization = importable("onnxruntime.quantization")
    source = path.with_name("float32.onnx")
    path.rename(source)
    quantization.quantize_dynamic(
        source, path, op_types_to_quantize=["MatMul", "Gemm"], weight_type=quantization.QuantType.QInt8
    )
    return _of_onnx(path, said)


def importable(*modules: str) -> Any:
    """Return the last of some modules of the extra ``onnx``; raises ConfigError if one is not installed."""
    return [from_extra("onnx", name, "--format onnx") for name in modules][-1]


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings about its exporters: deprecations, and what tracing cannot see."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
