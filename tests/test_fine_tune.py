"""The page on fine-tuning: adapters of a GPT-2 and a ViT made here, under algorithms and features."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from server_app.results.folder import RunFolder
from server_app.takeout.model import take
from task import trust
from task.adapters.names import pairs_of
from task.errors import ConfigError
from task.references import references_in
from task.resolve.read import read_config
from task.storage.files import read_safetensors
from task.wire import messages as wire
from tests.support.brought import imported_from
from tests.support.federation import in_one_process
from tests.support.fine_tune import SHORT, keys, make, run
from tests.support.grid import LocalGrid

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, in peft


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the page's modules and models."""
    folder = tmp_path_factory.mktemp("fine-tune")
    make(folder)
    with imported_from(folder), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def test_a_language_model_learns_the_clients_rule_and_peft_reads_it(folder: Path) -> None:
    from peft import PeftModel
    from transformers import GPT2LMHeadModel

    done = run(folder, keys("gpt2"), "gpt2", nodes=2)
    rows = done.rounds()
    assert rows[0]["loss"] > 5  # it knows another rule
    assert rows[-1]["accuracy"] > 0.8
    trained = read_safetensors(done.path / "adapters.safetensors")[1]
    assert len(pairs_of(trained)) == 8
    assert 2 * len(pairs_of(trained)) == len(trained)
    size = sum(a.nbytes for a in trained.values())
    sent = {row["bytes_up"] for row in done.clients() if row["phase"] == "train"}
    assert max(sent) < 2.2 * size + 10_000  # two clients a node: their sum has 8 bytes a number
    x, mine = torch.arange(12)[None], take(done.path).model
    read = PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained("gpt2"), str(done.path / "adapters"))
    found = read.eval()(x).logits
    assert torch.equal(mine(x).movedim(1, 2), found)
    assert torch.allclose(read.merge_and_unload()(x).logits, found, atol=1e-5)
    tied = read_safetensors(done.path / "model.safetensors")[1]
    assert not any(name.endswith("lm_head.weight") for name in tied)  # it is the embedding


def test_a_vision_model_learns_with_a_head_of_its_own(folder: Path) -> None:
    from peft import PeftModel
    from transformers import ViTForImageClassification

    done = run(folder, keys("vit"), "vit", nodes=2)
    rows = done.rounds()
    assert rows[-1]["accuracy"] > rows[0]["accuracy"] + 0.2
    base = ViTForImageClassification.from_pretrained("vit", num_labels=10, ignore_mismatched_sizes=True)
    read = PeftModel.from_pretrained(base, str(done.path / "adapters")).eval()
    x = torch.linspace(-1, 1, 64).view(1, 1, 8, 8)
    assert torch.equal(take(done.path).model(x), read(x).logits)


FFA = {"trainable": "*lora_B*"}
PRIVATE = {"dp.noise": 0.5, "dp.clip": 1.0, "fraction-evaluate": 0.0}
WARNING = (
    "warning: dp.noise: both factors of 2 adapters get noise, so that their products have "
    'B n_A + n_B A + n_B n_A. Train one of them: trainable="*lora_B*" (FFA-LoRA)'
)


@pytest.mark.parametrize(
    "more",
    [
        {"algorithm": "fedprox"},
        {"algorithm": "scaffold", "optimizer": "sgd"},
        {"algorithm": "ditto"},
        {"algorithm": "fedala", "local-test-fraction": 0.2},
        PRIVATE,
        FFA | PRIVATE,
        {"lora.average": "product"},
        {"lora.average": "norms", "width.levels": "1,0.5"},
        {"lora.average": "product", "width.levels": "1,0.5"},
        {"width.levels": "1,0.5"},
    ],
    ids=str,
)
def test_adapters_train_under(
    folder: Path, more: dict[str, Any], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    name = re.sub(r"\W+", "-", request.node.name)
    done = run(folder, keys("gpt2", **SHORT, **more) | {"progress": "log"}, name)
    rows, base = done.rounds(), {n: a for n, a in take_arrays(done).items() if "lora_" not in n}
    assert rows[-1]["answered"] == 3
    assert np.isfinite(rows[-1].get("loss") or rows[-1]["client_loss"])
    first = read_safetensors(done.path / "checkpoint/frozen.safetensors")[1]
    assert all(np.array_equal(a, first[n]) for n, a in base.items())
    if "product" in more.values():
        assert 0 <= rows[-1]["lora_left_out"] < 1
    if "trainable" in more:  # A is frozen, and gets no noise
        assert {n for n in first if "lora_A" in n} == {p.a for p in pairs_of(take_arrays(done))}
    warned = [line for line in capsys.readouterr().out.splitlines() if "factors of" in line]
    assert warned == [WARNING] * (more == PRIVATE)


def take_arrays(done: RunFolder) -> dict[str, np.ndarray]:
    return read_safetensors(done.path / "model.safetensors")[1]


def test_masked_sums_any_nodes_and_code_of_ones_own_end_in_one_model(folder: Path) -> None:
    """Of secure aggregation, of one node, and of a user's own get_peft_model with the same first A."""
    (folder / "own.py").write_text(
        "from transformers import GPT2LMHeadModel\n"
        "def make():\n"
        "    return GPT2LMHeadModel.from_pretrained('gpt2')\n"
    )
    given = keys("gpt2", **SHORT, **FFA)
    ways: dict[str, tuple[int, dict[str, Any]]] = {
        "one": (1, {}),
        "masked": (3, {"secagg": True}),
        "own": (2, {"model": "own:make"}),
    }
    made = {way: run(folder, given | more, f"same-{way}", nodes) for way, (nodes, more) in ways.items()}
    assert len({done.rounds()[-1]["model_sha256"] for done in made.values()}) == 1


@pytest.mark.parametrize("nodes", [3, 1])
@pytest.mark.parametrize(("more", "numbers"), [({}, 2 * 8 * (96 + 32)), (FFA, 2 * 8 * 96)], ids=["both", "B"])
def test_what_travels_are_the_factors_that_are_trained(
    nodes: int, more: dict[str, Any], numbers: int, folder: Path
) -> None:
    """Rank 8 in two layers 96 x 32: B is 3/4 of it. A node's sum of three clients has 8 bytes a number."""
    grids: list[LocalGrid] = []
    answered: list[Message] = []

    def weighed(*given: Any) -> LocalGrid:
        grids.append(LocalGrid(*given, tamper=lambda node, reply: (answered.append(reply), reply)[1]))
        return grids[0]

    given = keys("gpt2", **SHORT, **more) | {"num-server-rounds": 2, "run-name": f"sent-{numbers}-{nodes}"}
    trust.user_named(references_in(given))
    rows = RunFolder(in_one_process(given, folder / "runs", nodes, weighed)).rounds()
    for t in (1, 2):
        for way, width, messages in (
            ("down", 4, grids[0].sent),
            ("up", 4 if nodes == 3 else 8, answered),
        ):
            trains = [m.content for m in messages if m.metadata.message_type == "train"]
            mine = trains[nodes * (t - 1) : nodes * t]
            arrays = [a.numpy() for c in mine for r in c.array_records.values() for a in r.values()]
            assert sum(a.nbytes for a in arrays) == nodes * numbers * width
            payload = sum(map(wire.payload_bytes, mine))
            assert rows[t][f"bytes_{way}"] == payload < nodes * (numbers * width + 2000)


def test_what_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(words: str, **more: Any) -> None:
        given = {**keys("gpt2", **SHORT), **more}
        with pytest.raises(ConfigError, match=words):
            run(folder, given, f"refused-{abs(hash(words))}")

    refused("expected a folder that save_pretrained", model="transformers:./nothing")
    (folder / "empty").mkdir()
    refused('config.json with "architectures"', model="transformers:./empty")
    (folder / "pickled").mkdir()
    (folder / "pickled/config.json").write_text((folder / "gpt2/config.json").read_text())
    (folder / "pickled/pytorch_model.bin").write_bytes(b"")
    refused("weights as safetensors", model="transformers:./pickled")
    refused("lora.target-modules.*c_attn", **{"lora.target-modules": "c_atn"})
    refused("both trained", **FFA, **{"lora.average": "product"})
    monkeypatch.setattr(trust, "_named", set())  # as at a node, which has the keys from a server
    with pytest.raises(ConfigError, match="transformers"):
        run_unnamed(keys("gpt2"))


def run_unnamed(given: Mapping[str, Any]) -> None:
    from task.models.brought import find_maker

    find_maker(read_config({k: v for k, v in given.items() if k != "dataset"}).model)
