"""``import bouquet``: its names next to a user's own modules, and runs from Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bouquet.api import kebab, load
from bouquet.objects import with_references
from server_app.takeout.result import RunResult
from task.config.read import Knob, knobs
from task.errors import ConfigError
from tests.server_app.test_takeout import trained
from tests.support.script import run_script


def script(folder: Path, text: str, **files: str) -> str:
    """Run a script next to files of a user's own; return what it prints."""
    for name, content in files.items():
        path = folder / f"{name.replace(':', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return run_script(folder, text)


USERS = "import sys\nX = 5\nclass Net: ...\n"


@pytest.mark.parametrize(
    "imports",
    [
        "from bouquet.strategies import FedProx\nfrom task import Net, X\n",
        "import task\nfrom task import Net\nfrom bouquet.strategies import FedProx\nfrom task import X\n",
    ],
    ids=["ours first", "theirs first"],
)
def test_strategies_are_found_next_to_a_users_own_task(imports: str, tmp_path: Path) -> None:
    """A script's folder comes first on the path: its task.py would be taken for our package."""
    text = (
        "import task as again, pickle, client_app\n"
        "assert FedProx(fraction_train=0.5) and X == 5 and again.Net is Net and client_app.app == 'mine'\n"
        "assert pickle.loads(pickle.dumps(Net())).__class__ is Net\n"
        "import task.errors; assert task.errors.BouquetError\n"
        "try: from task import nothing\n"
        "except ImportError: print('refused')\n"
    )
    assert script(tmp_path, imports + text, task=USERS, client_app="app = 'mine'") == "refused\n"


def test_submodules_of_a_users_package_are_found_after_ours(tmp_path: Path) -> None:
    text = (
        "from bouquet.strategies import FedAvg\nfrom task.mine import Y\nfrom task import X\nprint(Y + X)\n"
    )
    assert script(tmp_path, text, **{"task:__init__": USERS, "task:mine": "Y = 2"}) == "7\n"


def test_every_public_name_is_there_next_to_a_users_own_modules(tmp_path: Path) -> None:
    """A lazy name that is misspelt, or that finds the user's task.py in place of ours."""
    text = """
import bouquet, bouquet.extend
for module in (bouquet, bouquet.extend):
    assert sorted(module.__all__) == module.__all__
    for name in module.__all__:
        assert getattr(module, name)
    assert not hasattr(module, "nothing")
assert issubclass(bouquet.StateError, bouquet.BouquetError)
print("all")
"""
    assert script(tmp_path, text, task=USERS) == "all\n"


def test_a_key_of_several_values_takes_a_list() -> None:
    given = {
        "node-names": ["ward-1", "ward-3"],
        "width.levels": (1, 0.5),
        "metrics": ["auc"],
        "run-name": ["a"],
    }
    assert with_references(given) == {
        "node-names": "ward-1,ward-3", "width.levels": "1,0.5", "metrics": "auc", "run-name": ["a"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "key", [k for k in knobs() if "," in "".join(re.findall(r'"([^"]*)"', k.doc))], ids=lambda k: k.key
)
def test_every_key_whose_meaning_shows_commas_does(key: Knob) -> None:
    assert key.several or key.key == "k-means.start"  # whose parts are lists


def test_a_package_that_nobody_hides_gets_nothing_added(tmp_path: Path) -> None:
    text = "import bouquet.strategies, task\nassert not hasattr(task, 'X')\nprint(len(task.__path__))\n"
    assert script(tmp_path, text) == "1\n"


def test_keys_are_written_as_python_has_them() -> None:
    given = {
        "learning_rate": 0.1,
        "fedprox": {"mu": 0.1},
        "adaptive_tau": {"tau_max": 3},
        "fedacg": {"lambda_": 0.5},
        "runs_dir": Path("r"),
    }
    assert kebab(given) == {
        "learning-rate": 0.1, "fedprox.mu": 0.1, "adaptive-tau.tau-max": 3, "fedacg.lambda": 0.5,
        "runs-dir": "r",
    }  # fmt: skip


def test_a_result_is_data_frames_a_model_and_a_plot(tmp_path: Path) -> None:
    folder = trained(tmp_path, algorithm="ditto")
    result = load(folder)
    assert isinstance(result, RunResult)
    assert list(result.rounds["round"]) == [0, 1, 2]
    assert result.rounds["seconds.total"].notna().all()
    evaluated = result.clients.query("phase == 'evaluate' and round == 2").set_index("name")
    assert len(evaluated) == 4
    mine = result.predict(client="client-2")
    assert mine.attrs["all"]["accuracy"] == pytest.approx(evaluated.loc["client-2", "accuracy"])
    assert (mine["predicted"] == mine.filter(like="p_").idxmax(axis=1).str.removeprefix("p_")).all()
    assert not result.model.training
    assert [axes.get_xlabel() for axes in result.plot().axes][:2] == ["round", "round"]
    assert result.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert repr(result).startswith("<ditto on digits, 2 rounds, accuracy 0.")
    with pytest.raises(ConfigError, match="load: expected a result folder"):
        load(tmp_path / "nothing")


@pytest.mark.full
@pytest.mark.system
def test_runs_follow_each_other_in_one_process_however_it_used_torch(tmp_path: Path) -> None:
    """Workers forked from a process with torch's threads hang with threads=2; spawned ones must not run the
    script again, nor take the user's task.py for ours."""
    text = """
import os, torch
torch.rand(3_000_000).exp().sum()
threads = torch.get_num_threads()
from bouquet import load, run
runs = [
    run("fedprox", num_server_rounds=2, num_clients=4, progress="none", run_name=name, **more)
    for name, more in (("a", {}), ("b", {"threads": 2}), ("c", {"fedprox": {"mu": 0.5}}))
]
assert torch.get_num_threads() == threads
hashes = [list(r.rounds["model_sha256"]) for r in runs]
assert hashes[0] == hashes[1] != hashes[2], hashes
again = run(repeat=runs[2].path, run_name="d", progress="none")
assert list(again.rounds["model_sha256"]) == hashes[2]
run(repeat=runs[2].path, run_name="d", overwrite=True, progress="none")
from task import X
print("done", X, len(load("d").rounds))
"""
    printed = script(tmp_path, text, task=USERS)
    assert printed.count("done 5 3") == 1
