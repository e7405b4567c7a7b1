"""Which folder a run takes: no run is renamed or written over, and a resume finds its run or is refused."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from server_app.cli import main as cli
from server_app.deploy.kits.kit import LinkKit
from server_app.deploy.link import follow
from server_app.deploy.link.jobs import FINISHED, Jobs
from server_app.results.folder import RunFolder
from server_app.run.naming import folder_of_run, numbered, remove_run
from server_app.run.run_lock import holding
from task.errors import BouquetError, ConfigError
from task.resolve.read import read_config
from task.tasks import with_task


def put(path: Path, *, rounds: bool = True, result: bool = False) -> Path:
    """Leave the result folder of a run."""
    folder = RunFolder.create(path, {"run": {"seed": 1}}, resume=False)
    if rounds:
        folder.append_round({"round": 0})
    if result:
        (path / "result.json").write_text("{}")
    return path


def where(runs: Path, name: str = "", **keys: Any) -> str:
    return folder_of_run(read_config({"run-name": name, **keys}), runs).name


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("result", [False, True])
def test_a_name_that_a_run_has_is_refused(result: bool, tmp_path: Path) -> None:
    put(tmp_path / "mine", result=result)
    before = everything(tmp_path)
    kind = "a finished" if result else "an unfinished"
    message = rf'"run-name".*"mine".*holds {kind} run.*--resume.*--run-name.*--overwrite'
    with pytest.raises(ConfigError, match=message):
        where(tmp_path, "mine")
    assert everything(tmp_path) == before
    assert where(tmp_path, "mine", resume=True) == "mine"
    assert where(tmp_path, "other") == "other"


def test_a_run_that_failed_before_its_first_round_does_not_hold_its_name(tmp_path: Path) -> None:
    put(tmp_path / "mine", rounds=False)
    assert where(tmp_path, "mine") == "mine"


def test_a_run_without_a_name_takes_the_next_free_one(tmp_path: Path) -> None:
    assert where(tmp_path) == "fedavg-digits-1"
    for name in ("fedavg-digits-1", "fedavg-digits-1-2", "fedavg-digits-1-3"):
        assert where(tmp_path) == name
        put(tmp_path / name)
    put(tmp_path / "fedavg-digits-1-7")  # a higher number is younger
    put(tmp_path / "fedavg-digits-1-x")
    assert where(tmp_path) == "fedavg-digits-1-8"
    assert where(tmp_path, seed=2) == "fedavg-digits-2"
    with holding(tmp_path / "fedavg-digits-2", 0.0):  # another one begins just now
        assert where(tmp_path, seed=2) == "fedavg-digits-2-2"
    said = numbered(read_config({}), "fedavg-digits-1-8")
    assert said == "fedavg-digits-1 is the name of an earlier run; this one is called fedavg-digits-1-8"
    assert numbered(read_config({"run-name": "a"}), "a") == ""
    assert numbered(read_config({"resume": True}), "fedavg-digits-1-7") == ""


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"learning-rate": 0.05}, "fedavg-digits-learning-rate_0.05-1"),
        ({"learning-rate": 0.1}, "fedavg-digits-1"),  # the default
        ({"algorithm": "ditto"}, "ditto-digits-1"),  # clients evaluate, as its own default is
        ({"algorithm": "ditto", "fraction-evaluate": 0.5}, "ditto-digits-fraction-evaluate_0.5-1"),
        ({"model": "2nn", "dataset": "mnist", "num-clients": 9, "seed": 7}, "fedavg-mnist-2nn-clients_9-7"),
        ({"num-clients": 9, "model": "2nn", "dataset": "mnist", "seed": 7}, "fedavg-mnist-2nn-clients_9-7"),
        ({"algorithm": "fedprox", "fedprox.mu": 1, "fedprox.adaptive": True},
         "fedprox-digits-mu_1-adaptive-1"),
        ({"algorithm": "fedprox", "fedprox.measure-gamma": True}, "fedprox-digits-measure-gamma-1"),
        ({"dataset": "csv", "data-path": "/a b/My Wards.csv", "num-classes": 2},
         "fedavg-csv-path_My-Wards.csv-classes_2-1"),
        ({"num-server-rounds": 3, "progress": "none", "runs-dir": "x"}, "fedavg-digits-1"),
    ],
)  # fmt: skip
def test_a_name_says_what_was_changed(keys: dict[str, Any], name: str, tmp_path: Path) -> None:
    """All runs of a data set were called alike, and a resume with more rounds has to find its run."""
    assert where(tmp_path, **keys) == name.replace("path_", "data-path_")


def test_a_name_stays_when_the_data_have_said_the_task(tmp_path: Path) -> None:
    """Every run said that its name was taken, and kept state lay under another name than the run's."""
    config = read_config({"algorithm": "ditto"})
    assert with_task(config, "classification").run_name == config.run_name
    assert numbered(with_task(config, "classification"), where(tmp_path, algorithm="ditto")) == ""


def test_a_long_name_is_cut_and_stays_one_of_its_own(tmp_path: Path) -> None:
    keys = {
        "learning-rate": 0.12345, "lr-decay": 0.98765, "weight-decay": 0.00012, "local-test-fraction": 0.25,
        "target-accuracy": 0.9, "max-update-norm": 12.5, "client-evaluate-every": 7, "fraction-evaluate": 0.5,
    }  # fmt: skip
    one, two = where(tmp_path, **keys), where(tmp_path, **keys | {"max-update-norm": 12.6})
    assert len(one) <= 80
    assert one != two
    assert one[:40] == two[:40]
    assert one == where(tmp_path, **dict(reversed(keys.items())))
    assert one.endswith("-1")


def test_a_resume_without_a_name_goes_on_with_the_last_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no runs"):
        where(tmp_path, resume=True)
    put(tmp_path / "fedavg-digits-1", result=True)
    assert where(tmp_path, resume=True) == "fedavg-digits-1"
    put(tmp_path / "fedavg-digits-1-2")
    assert where(tmp_path, resume=True) == "fedavg-digits-1-2"
    assert where(tmp_path, resume=True, **{"num-server-rounds": 99}) == "fedavg-digits-1-2"
    assert where(tmp_path, "fedavg-digits-1", resume=True) == "fedavg-digits-1"
    with pytest.raises(ConfigError, match=r'fedavg-digits-1, .*Did you mean "fedavg-digits-1'):
        where(tmp_path, resume=True, **{"learning-rate": 0.5})


def test_a_resume_under_a_wrong_name_is_refused_with_the_near_ones(tmp_path: Path) -> None:
    for name in ("ward-trial", *(f"a{i}" for i in range(12))):
        put(tmp_path / name)
    message = r'expected a run .*ward-trail; got none.* a0, .* and 8 more.*"ward-trial"'
    with pytest.raises(ConfigError, match=message):
        where(tmp_path, "ward-trail", resume=True)
    assert not (tmp_path / "ward-trail").exists()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/tmp", "../x"])
def test_only_a_folder_of_the_runs_is_ever_deleted(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(ConfigError, match="the name of one folder"):
        remove_run(tmp_path / "runs", name)
    assert (tmp_path / "x").exists()


def test_overwriting_deletes_a_run_and_nothing_else(tmp_path: Path) -> None:
    remove_run(tmp_path, "not-there")
    put(tmp_path / "mine", result=True)
    with holding(tmp_path / "mine", 0.0), pytest.raises(BouquetError, match="that no run writes to"):
        remove_run(tmp_path, "mine")
    assert (tmp_path / "mine" / "result.json").exists()
    remove_run(tmp_path, "mine")
    assert not (tmp_path / "mine").exists()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    with pytest.raises(ConfigError, match="expected the result folder of a run"):
        remove_run(tmp_path, "photos")
    assert (tmp_path / "photos" / "one.jpg").exists()


@pytest.mark.parametrize("words", [["--overwrite"], ["--overwrite", "--run-name", "a", "--resume"]])
def test_overwrite_needs_a_name_and_no_resume(words: list[str]) -> None:
    done = CliRunner().invoke(cli.app, ["run", *words])
    assert isinstance(done.exception, ConfigError)
    assert "--overwrite: expected --run-name and no --resume" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nodes", "ward-1"], "--nodes: expected the number of virtual nodes"),
        (["--nodes", "-1"], "--nodes: expected the number of virtual nodes"),
        (["--node-names", "ward-1"], "--node-names: expected it with --link KIT"),
        (["--link", "kit", "--nodes", "3"], "--nodes: expected in a simulation only"),
        (
            ["--link", "kit", "--attach", "a", "--node-names", "ward-1"],
            "--node-names: expected only when a run is submitted",
        ),
    ],
)
def test_nodes_are_named_where_a_run_is_submitted_to_a_link(words: list[str], says: str) -> None:
    done = CliRunner().invoke(cli.app, ["run", *words])
    assert isinstance(done.exception, ConfigError)
    assert says in str(done.exception)


def test_the_command_line_refuses_a_resume_under_a_wrong_name(tmp_path: Path) -> None:
    words = ["run", "--resume", "--run-name", "typo", "--runs-dir", str(tmp_path), "-c", 'progress="none"']
    level = logging.getLogger("flwr").level
    done = CliRunner().invoke(cli.app, words)
    assert logging.getLogger("flwr").level == level  # quiet during a simulation, and no longer
    assert isinstance(done.exception, ConfigError)
    assert "expected a run to continue" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------- at a link


@pytest.fixture
def kit(tmp_path: Path) -> LinkKit:
    return LinkKit(tmp_path, "0.0.0.0:9092", "127.0.0.1:8000", "host:9092", 1000, 120)


def test_a_link_refuses_a_resume_of_nothing_and_a_name_that_is_taken(kit: LinkKit) -> None:
    with pytest.raises(ConfigError, match="expected a run to continue"):
        follow.submit(kit, {"run-name": "typo", "resume": True})
    put(kit.runs / "mine", result=True)
    with pytest.raises(ConfigError, match="a finished run"):
        follow.submit(kit, {"run-name": "mine"})
    assert Jobs(kit.jobs, kit.runs).all() == []
    assert follow.submit(kit, {"run-name": "mine", "resume": True}).keys["resume"] is True
    with pytest.raises(ConfigError, match="no queued or running job"):
        follow.submit(kit, {"run-name": "mine"}, overwrite=True)
    assert (kit.runs / "mine" / "result.json").exists()


def test_a_link_numbers_runs_without_a_name_and_overwrites_when_told_to(kit: LinkKit) -> None:
    jobs = Jobs(kit.jobs, kit.runs)
    names = [follow.submit(kit, {}).name for _ in range(3)]
    assert names == ["fedavg-digits-1", "fedavg-digits-1-2", "fedavg-digits-1-3"]
    put(kit.runs / "mine", result=True)
    job = follow.submit(kit, {"run-name": "mine"}, overwrite=True)
    assert not (kit.runs / "mine").exists()
    assert (job.folder_before, job.result_before) == ("", 0)
    jobs.update(job, state=FINISHED)
    follow.submit(kit, {"run-name": "mine"})  # the job is over and left no folder


def test_two_submissions_at_once_get_two_names(kit: LinkKit) -> None:
    """Both found the default name free, and the second replaced the first one's job."""
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: follow.submit(kit, {}).name, range(8)))
    assert len(set(names)) == 8
