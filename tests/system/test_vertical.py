"""Three parties with csv files of their own on gRPC nodes: the model of one process; a lost party."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.deploy.link import follow
from server_app.deploy.link.status import read_status
from server_app.engines.federation import Federation, federation
from server_app.results.folder import RunFolder
from tests.support import parties
from tests.vertical import test_logistic

pytestmark = pytest.mark.system


ORDERS = {"ada": [*range(5, 35), 1, 2], "bob": [0, 1, *range(5, 35)], "cyd": [*range(5, 35), 38]}


def keys_of(**more: Any) -> dict[str, Any]:
    return parties.config(vertical__parties="ada,bob,cyd", roll_call_timeout=2.0, progress="none", **more)


def sites(folder: Path) -> tuple[dict[str, Path], dict[str, list[str]]]:
    """Write a file for each party, in an order of its own, with 30 common rows; return the nodes too."""
    rng = np.random.default_rng(0)
    files = parties.owners(folder, {name: rng.permutation(rows).tolist() for name, rows in ORDERS.items()})
    return files, {name: ["--data", str(path)] for name, path in files.items()}


def check(folder: Path, files: dict[str, Path]) -> None:
    """Compare with the run of one process."""
    rows, want = RunFolder(folder).rounds(), parties.play_own(files, keys_of()).rows
    for key in ("model_sha256", "client_accuracy", "metrics", "answered"):
        assert [row[key] for row in rows] == [row[key] for row in want], key
    assert rows[2]["metrics"]["rows"] == 22  # of 30 common ones, 8 are for the test


def test_three_parties_with_own_files_end_as_in_one_process(tmp_path: Path) -> None:
    files, nodes = sites(tmp_path)
    with federation(nodes, tmp_path / "runs", policy={"min-examples": 1}) as fed:
        fed.run(keys_of(run_name="split"))
    check(tmp_path / "runs" / "split", files)


@pytest.mark.full
def test_logistic_regression_on_ciphertexts_ends_as_in_one_process_in_clear(tmp_path: Path) -> None:
    files = test_logistic.owners(tmp_path, ("ada", "cyd"), rows=16)
    nodes = {name: ["--data", str(path)] for name, path in files.items()}
    keys = test_logistic.config(num_server_rounds=2, progress="none")
    with federation(nodes, tmp_path / "runs", policy={"min-examples": 1}) as fed:
        fed.run(keys | {"vertical.key-bits": 2048, "run-name": "sealed"})
    rows, want = RunFolder(tmp_path / "runs" / "sealed").rounds(), parties.play_own(files, keys).rows
    for key in ("model_sha256", "client_accuracy", "metrics"):
        assert [row[key] for row in rows] == [row[key] for row in want], key


@pytest.mark.full  # a link tries again after half a minute or more
def test_a_lost_party_is_named_and_the_run_goes_on_when_it_is_back(tmp_path: Path) -> None:
    files, nodes = sites(tmp_path)
    with federation(nodes, tmp_path / "runs", policy={"min-examples": 1}) as fed:
        fed.processes["bob"].terminate()
        fed.processes.pop("bob").wait()
        job = follow.submit(fed.kit, keys_of(run_name="split", min_nodes=2))
        deadline = time.monotonic() + 200
        while "bob" not in (why := reason(fed)):
            assert time.monotonic() < deadline, why
            time.sleep(0.5)
        fed.start("bob", "node", str(fed.kit.path.parent / "bob"), *nodes["bob"])
        follow.follow(fed.kit, job)
    assert "expected" in why
    assert "Start the nodes of" in why
    check(tmp_path / "runs" / "split", files)


def reason(fed: Federation) -> str:
    """Return what the link's status says of its one run."""
    return "".join(f"{run['waits']}{run['reason']}" for run in read_status(fed.kit)["runs"])
