"""``arrivals.jsonl``: whole lines of this run, and nothing else."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from server_app.engines.replay import replay
from server_app.engines.simulate import simulate
from server_app.results.folder import RunFolder
from server_app.run.logs.arrivals import FILE, ArrivalFile, finished_order_of
from task.errors import ConfigError, StateError
from task.features import check_simulated
from task.resolve.read import read_config
from tests.support.federation import write_owners

START = {"event": "start", "round": 1, "client": "a", "version": 0, "lr": 0.1}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.json").write_text(json.dumps({"id": "mine"}))
    return RunFolder(tmp_path)


def test_a_line_that_is_not_whole_is_cut_by_a_resume_and_refused_by_a_replay(folder: RunFolder) -> None:
    ArrivalFile(folder, resume=False).add(START)
    path = folder.path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "arr')
    with pytest.raises(StateError, match=r"arrivals\.jsonl: expected whole lines.*resume the run"):
        finished_order_of(folder)
    again = ArrivalFile(folder, resume=True)
    again.turn_to(1)
    assert again.follow() == START
    again.add(START | {"client": "b"})
    assert path.read_bytes().startswith(whole)
    assert len(path.read_bytes().splitlines()) == 3
    assert finished_order_of(folder).closed


def test_the_order_of_another_run_or_none_is_refused(folder: RunFolder) -> None:
    with pytest.raises(StateError, match="expected the order in which updates arrived; got none"):
        finished_order_of(folder)
    ArrivalFile(folder, resume=False).add(START)
    (folder.path / "config.json").write_text(json.dumps({"id": "other"}))
    for read in (partial(ArrivalFile, resume=True), finished_order_of):
        with pytest.raises(StateError, match="expected the order of arrival of run other; got that of mine"):
            read(folder)


def test_a_simulation_has_no_real_arrivals() -> None:
    real = read_config({"algorithm": "fedbuff", "order-of-arrival": "real"})
    with pytest.raises(ConfigError, match=r'"virtual" in a simulation.*got "real".*bouquet replay RUN'):
        check_simulated(real)
    with pytest.raises(ConfigError, match='"order-of-arrival": nothing in this run reads it'):
        read_config({"order-of-arrival": "real"})
    with pytest.raises(ConfigError, match=r'"devices\.spread": nothing in this run reads it'):
        read_config({"algorithm": "fedbuff", "order-of-arrival": "real", "devices.spread": 2.0})


def test_a_replay_on_other_data_than_the_run_s_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "owners.npz"
    write_owners(data)
    keys = {"algorithm": "fedbuff", "dataset": "npz", "data-path": str(data), "partition": "natural"}
    keys |= {"num-clients": 0, "model": "logistic", "fedbuff.buffer": 2, "num-server-rounds": 1}
    keys |= {"local-test-fraction": 0.0, "progress": "none", "runs-dir": str(tmp_path), "run-name": "ward"}
    folder = RunFolder(simulate(keys, 1).path)
    record = folder.config()
    record["run"]["order-of-arrival"] = "real"
    (folder.path / "config.json").write_text(json.dumps(record))
    order = ArrivalFile(folder, resume=False)
    order.add({"event": "step", "round": 1, "updates": [], "refused": []})
    data.with_suffix(".away").write_bytes(data.read_bytes())

    def begin(line: str) -> None:
        raise RuntimeError("the data are right")

    with pytest.raises(RuntimeError, match="the data are right"):
        replay(folder.path, 1, begin)
    write_owners(data, seed=6)
    was = record["data"]["fingerprint"][:12]
    with pytest.raises(ConfigError, match=rf"ward: expected the data of the run, SHA-256 {was}.*; got .*npz"):
        replay(folder.path, 1, begin)
    data.with_suffix(".away").replace(data)
    with pytest.raises(RuntimeError, match="the data are right"):
        replay(folder.path, 1, begin)
    (folder.path / "config.json").write_text(json.dumps(record | {"data": None}))
    with pytest.raises(ConfigError, match="expected a run on data of this machine; got one whose data"):
        replay(folder.path, 1, begin)
    record["run"] |= {"num-server-rounds": 2, "lr-schedule": "cosine"}
    (folder.path / "config.json").write_text(json.dumps(record))
    (folder.path / "result.json").unlink()
    with pytest.raises(ConfigError, match=r"its rounds depend on their number .*; got 1 of 2 rounds"):
        replay(folder.path, 1, begin)
