"""Analyses over three nodes with TLS and own files: a node killed at a question and back changes nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from safetensors.numpy import load_file

from server_app.deploy.link import follow
from server_app.engines.federation import Federation, federation
from server_app.results.folder import MODEL, RunFolder
from task.errors import BouquetError
from tests.classical import (
    test_cox_runs,
    test_multivariate,
    test_statistics,
    test_survival_runs,
    test_trees_runs,
    test_xgb_runs,
)
from tests.classical.test_survival import LUNG
from tests.faults.federation import HOOK
from tests.faults.machine import until
from tests.support.federation import in_one_process

pytestmark = [pytest.mark.system, pytest.mark.full, pytest.mark.timeout(900)]
SITES = ("ada", "bob", "cyd")
WITHIN_S = 120.0


@dataclass
class Analysis:
    """What is asked of which rows, and the round after which a node is killed at its next question."""

    keys: Mapping[str, Any]
    frame: pd.DataFrame
    header: list[str]
    after: int  # -1 = at the first question of all
    timeout: float = 30.0  # of a round, s; where a round goes on without a lost node, enough to come back
    ended: str = "converged"  # what is not 0 in the table of a run that did its work


def grown(algorithm: str, after: int) -> Analysis:
    """Return trees of six rounds: a round would close without the killed node, or its turn pass on."""
    keys = {**test_xgb_runs.KEYS, "algorithm": algorithm, "num-server-rounds": 6, "xgb.subsample": 0.8}
    frame = test_xgb_runs.FRAME.drop(columns="client")
    return Analysis(keys, frame, test_xgb_runs.HEADER[:-1], after, timeout=240.0, ended="trees")


ANALYSES = {
    "cox": Analysis(test_cox_runs.RUN, test_cox_runs.FRAME, test_cox_runs.HEADER, 2),
    "gbdt": Analysis(test_trees_runs.KEYS, test_trees_runs.FRAME, test_trees_runs.HEADER, 1),
    "kaplan-meier": Analysis(test_survival_runs.KEYS, LUNG, test_survival_runs.HEADER, 0),
    "pca": Analysis(test_multivariate.keys_of("pca"), test_multivariate.PEOPLE, test_multivariate.HEADER, 0),
    "statistics": Analysis(
        test_statistics.keys_of(**test_statistics.BARS),
        test_statistics.FRAME.dropna(subset="y"),  # a node refuses to start with rows without a target
        test_statistics.HEADER,
        1,
    ),
    "xgb-bagging": grown("xgb-bagging", after=1),
    "xgb-cyclic": grown("xgb-cyclic", after=0),  # bob's turn is round 2
}


class Sites:
    """The files of three nodes, and programs that they ask before they answer, which can be made to wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in SITES:
            hook = self.hook(name) / "may-train"
            hook.parent.mkdir()
            hook.write_text(HOOK.format(folder=hook.parent))
            hook.chmod(0o755)
            self.data(name).write_text("a,y:target\n1,0\n")  # a node starts with a table

    def hook(self, name: str) -> Path:
        return self.folder / f"{name}-hook"

    def data(self, name: str) -> Path:
        return self.folder / f"{name}.csv"

    def options(self, name: str) -> list[str]:
        return ["--data", str(self.data(name)), "--may-train", str(self.hook(name) / "may-train")]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    return Sites(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="module")
def fed(sites: Sites, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    nodes = {name: sites.options(name) for name in SITES}
    with federation(nodes, tmp_path_factory.mktemp("at-a-link") / "runs", policy={"min-examples": 0}) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "masked"),
    [
        ("cox", False),
        ("cox", True),
        ("gbdt", True),
        ("kaplan-meier", False),
        ("pca", True),
        ("statistics", True),
        ("xgb-bagging", False),
        ("xgb-cyclic", False),
    ],
)
def test_a_killed_node_that_comes_back_changes_nothing(
    name: str, masked: bool, sites: Sites, fed: Federation, tmp_path: Path
) -> None:
    asked = ANALYSES[name]
    pooled = tmp_path / "pooled.csv"
    owners = [SITES[i % 3] for i in range(len(asked.frame))]
    asked.frame.assign(client=owners).to_csv(pooled, index=False, header=[*asked.header, "client"])
    for i, site in enumerate(SITES):
        asked.frame.iloc[i::3].to_csv(sites.data(site), index=False, header=asked.header)
    keys = {**asked.keys, "secagg": masked, "progress": "none", "run-name": f"{name}-{masked}"}
    here = in_one_process({**keys, "data-path": str(pooled)}, tmp_path / "here", nodes=3)

    own = {k: v for k, v in keys.items() if k != "partition"}
    job = follow.submit(fed.kit, {**own, "min-nodes": 3, "round-timeout": asked.timeout})
    there = fed.kit.runs / job.name
    kill_at_a_question(sites, fed, there, asked.after)
    try:
        follow.follow(fed.kit, job)
    except BouquetError as err:
        raise AssertionError(f"{err}\n{fed.logs('bob')}\n{fed.logs('link')}") from None
    tables = [json.loads((folder / "result.json").read_text())["table"] for folder in (there, here)]
    assert tables[0] == tables[1]
    assert tables[0][asked.ended]
    sums = [{n: a.tobytes() for n, a in load_file(folder / MODEL).items()} for folder in (there, here)]
    assert sums[0] == sums[1]


def kill_at_a_question(sites: Sites, fed: Federation, run: Path, after: int) -> None:
    """Kill all processes of a node that is at work on a question after a round, and start it again."""
    bob, hook = fed.node("bob"), sites.hook("bob")
    (hook / "held").unlink(missing_ok=True)

    def rounds() -> int:
        return len(RunFolder(run).rounds(unfinished=True)) - 1

    def wait(true: Callable[[], object]) -> None:
        try:
            until(true, WITHIN_S, f"a question to bob after round {after}")
        except AssertionError as err:
            raise AssertionError(f"{err}\n{fed.logs('link')}") from None

    wait(lambda: rounds() >= after)
    (hook / "hold").touch()
    wait((hook / "held").exists)
    before = rounds()
    tree = [bob, *bob.children(recursive=True)]
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=20)
    if started := fed.processes.get("bob"):  # by an earlier case
        started.wait()
    (hook / "hold").unlink()
    assert not (run / "result.json").exists()
    assert rounds() == before
    fed.start("bob", "node", str(fed.kit.path.parent / "bob"), *sites.options("bob"))
