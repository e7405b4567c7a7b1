"""Objects in place of references: ``run(model=Net, dataset=(x, y), loss=my_loss)``."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bouquet import api, objects
from client_app.solvers import Solver, solver_of
from strategies.rules.fedavg import FedAvg
from task import objects as registry
from task.catalogue.algorithms import ALGORITHMS
from task.catalogue.user_algorithm import algorithm_of
from task.errors import ConfigError, DataError
from task.object_digest import digest
from task.references import code_of, load_reference, not_repeatable
from tests.support.brought import imported_from
from tests.support.script import ROOT, run_script


@pytest.fixture(autouse=True)
def empty_register() -> Iterator[None]:
    """Forget what a test registers."""
    before = dict(registry._given)
    yield
    registry._given.clear()
    registry._given.update(before)


NET = """
import numpy as np
import torch
from torch import nn

WIDTH = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, WIDTH)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


def data():
    x = np.random.default_rng(1).normal(size=(90, 6))
    return x, x[:, :3].argmax(1), x[:30], x[:30, :3].argmax(1)


def loss(outputs, y):
    return nn.functional.cross_entropy(outputs, y, reduction="none")
"""

RUNS = """
import threading
from bouquet import run


def make():
    from torch.utils.data import TensorDataset
    x, y, x_test, y_test = map(torch.tensor, data())
    return TensorDataset(x, y), TensorDataset(x_test, y_test)


def hashes(name, **keys):
    made = run("fedavg", num_clients=3, num_server_rounds=2, progress="none", run_name=name, **keys)
    return list(made.rounds["model_sha256"])


if __name__ == "__main__":
    expected = hashes("named", model="net:Net", dataset="net:data", loss="net:loss")
    assert expected == hashes("given", model=Net, dataset=data(), loss=loss)
    assert expected == hashes("sets", model=lambda: Net(), dataset=make(), loss=loss)
    assert expected == hashes("again", repeat="runs/given", model=Net, dataset=data(), loss=loss)
    # As in a notebook, whose kernel has threads: workers are spawned, and have to be sent the objects.
    waiting = threading.Event()
    threading.Thread(target=waiting.wait, daemon=True).start()
    assert expected == hashes("threads", model=Net, dataset=data, loss=loss)
    print("done")
"""

RESUMES = """
from bouquet import run


def refused(**other):
    try:
        run("fedavg", **{"dataset": data(), "loss": loss, **keys, **other})
    except Exception as err:
        print(type(err).__name__, err)


keys = dict(num_clients=3, num_server_rounds=3, progress="none", run_name="given", resume=True)
refused()
made = run("fedavg", model=Net, dataset=data(), loss=loss, **keys)
assert made.summary["rounds"] == 3
WIDTH = 9
refused(model=Net)
"""


@pytest.mark.full
@pytest.mark.system
def test_a_run_with_objects_ends_in_the_bytes_of_one_by_reference(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    assert run_script(tmp_path, NET + RUNS).splitlines()[-1] == "done"
    config = json.loads((tmp_path / "runs/given/config.json").read_text())
    assert config["run"]["model"].startswith("python:Net.")
    assert "cannot be repeated from its config alone: dataset, loss, model were given" in config["repeat"]
    assert config["repeat"] in (tmp_path / "runs/given/report.html").read_text()
    assert "repeat" not in json.loads((tmp_path / "runs/named/config.json").read_text())
    _refused_elsewhere(tmp_path)
    printed = run_script(tmp_path, NET + RESUMES)  # another process: its digests are the same
    assert 'ConfigError run-config key "model": "python:Net.' in printed  # left out, and not at hand
    assert "Call bouquet.run(model=...) with the same object; to resume, also with resume=True" in printed
    assert printed.count("ConfigError --resume") == 1  # another one
    assert "was started with a Python object" in printed
    assert "bouquet.run(resume=True, model=...)" in printed


def _refused_elsewhere(folder: Path) -> None:
    """Commands have no objects: each says what to do instead."""
    key = json.loads((folder / "runs/given/config.json").read_text())["run"]["model"]
    commands = (
        ["run", "--from", "runs/given"],
        ["run", "--run-name", "given", "--resume", "-c", f'model="{key}"'],
        ["federation", "-c", f'model="{key}" num-server-rounds=1'],
    )
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-m", "server_app.cli.main", *words],
            cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": ""},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode == 78, said
        assert "is an object of the Python program that started the run" in said
        assert "bouquet.run(model=...)" in said or "bouquet.run(dataset=...)" in said


def test_what_can_be_imported_is_a_reference(tmp_path: Path) -> None:
    (tmp_path / "objects_net.py").write_text(NET)
    with imported_from(tmp_path):
        import objects_net  # type: ignore[import-not-found]

        keys = objects.with_references({"model": objects_net.Net, "loss": objects_net.loss, "seed": 3})
    assert keys == {"model": "objects_net:Net", "loss": "objects_net:loss", "seed": 3}
    assert not not_repeatable(keys)


def test_a_module_is_the_start_and_stays_as_it_was_given() -> None:
    given = nn.Linear(3, 2)
    before = given.weight.detach().clone()
    name = objects.with_references({"model": given})["model"]
    with torch.no_grad():
        given.weight.fill_(7)
    first, second = (load_reference("model", name)() for _ in range(2))
    assert first is not second
    assert torch.equal(first.weight, before)
    assert name != objects.with_references({"model": given})["model"]


def test_several_metrics_and_names_beside_objects() -> None:
    class Own:
        pass

    listed = objects.with_references({"metrics": ["f1-macro", Own]})["metrics"]
    assert listed.startswith("f1-macro,python:Own.")
    assert code_of([listed.partition(",")[2]]) == {listed.partition(",")[2]: digest(Own)}


def test_a_rule_with_a_solver_in_python_is_an_algorithm() -> None:
    class Half(Solver):
        pass

    class Own(FedAvg):
        entry: Any = replace(ALGORITHMS["fedavg"], solver=Half)  # type: ignore[arg-type]

    name = objects.with_references({"algorithm": Own})["algorithm"]
    found = algorithm_of(name)
    assert found.solver.startswith("python:Half.")
    assert issubclass(solver_of(found.solver), Half)
    assert {name, found.solver} <= registry.Sent([name])._given.keys()  # a spawned worker gets both


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": 3}, r"run\(model=...\): expected a name, a callable or a torch.nn.Module; got int"),
        ({"loss": 3.5}, r"run\(loss=...\): expected a name, a callable; got float"),
        ({"dataset": 3}, r"run\(dataset=...\): expected \(x_train, .*; got int"),
        ({"dataset": (np.zeros((5, 2)), np.zeros(4, int))}, "as many targets y as examples x; got 5 and 4"),
        (
            {"dataset": (np.zeros((5, 2)), np.zeros(5, int), np.zeros((3, 2)), np.zeros(2, int))},
            "as many targets y_test as examples x_test; got 3 and 2",
        ),
    ],
)
def test_what_is_no_such_thing_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        objects.with_references(keys)


def test_what_cannot_be_sent_is_refused_before_anything_starts() -> None:
    lock = threading.Lock()
    with pytest.raises(
        ConfigError, match=r"run\(loss=...\): .* cannot be pickled: TypeError: .*lock.*net.py"
    ):
        api.run("fedavg", "", "", False, (), 0, 0, {"loss": lambda outputs, y: lock and outputs})


DIGESTS = """
import functools, sys
sys.path.insert(0, "ROOT")
import numpy as np, torch
from task.object_digest import digest

LIMIT = 3
class Base:
    names = {"a", "bb", "ccc"}
    def size(self, x): return x in {"one", "two"} and self.names
class Net(Base, torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(self.layer.weight), torch.nn.init.zeros_(self.layer.bias)
    def forward(self, x): return sorted([x, LIMIT], key=lambda v: -v)
    @property
    def itself(self): return Net
def closed(a, *, b={"k": 1}):
    def inner(x): return x + a + len(b) + np.float32(1)
    return inner
print(digest(Net), digest(Net()), digest(closed(2)), digest(functools.partial(closed, b=3)))
"""


@pytest.mark.full
def test_a_digest_says_what_an_object_does(tmp_path: Path) -> None:
    """It is the same in other processes and at another place of a file, and changes with a value."""

    def made(text: str, seed: str) -> list[str]:
        text = text.replace("ROOT", str(ROOT))
        return run_script(tmp_path, text, PYTHONHASHSEED=seed).split()

    first = made(DIGESTS, "1")
    assert len({*first}) == 4
    assert made("# moved\n\n" + DIGESTS, "2") == first
    other = made(DIGESTS.replace("LIMIT = 3", "LIMIT = 4").replace("closed(2)", "closed(1)"), "3")
    assert [a == b for a, b in zip(first, other, strict=True)] == [False, False, False, True]
