"""What the monitor tells Prometheus: the text by hand, and by Prometheus' own parser."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from server_app.deploy.calls.control import NodeState
from server_app.deploy.host.processes import Child
from server_app.deploy.link.jobs import Jobs
from server_app.deploy.link.status import Seen, write_status
from server_app.extras.monitor.data import Watched
from server_app.extras.monitor.metrics import LATEST, MetricFamily, metrics
from tests.deploy.test_monitor import Browse, browse, link_kit
from tests.support.monitor import EVIL, write_run

__all__ = ["browse"]  # a fixture


def test_the_text_of_a_family() -> None:
    family = MetricFamily("a_total", "counter", "What it is.")
    assert list(family.lines()) == []
    family.add(None, run="not measured")
    family.add(3, run='a"b\\c\nd')
    family.add(0.25)
    assert list(family.lines()) == [
        "# HELP a_total What it is.",
        "# TYPE a_total counter",
        'a_total{run="a\\"b\\\\c\\nd"} 3',
        "a_total 0.25",
    ]


def test_a_link_and_its_runs(tmp_path: Path) -> None:
    kit = link_kit(tmp_path / "link")
    nodes = [NodeState(7, "ward-2", b"", True, False, None), NodeState(8, EVIL, b"", True, True, time.time())]
    child = Child("superlink", ["true"])
    write_status(kit, Seen(time.monotonic(), "", nodes, []), [child], Jobs(kit.jobs, kit.runs))
    write_run(kit.runs / "one", 3)
    lines = metrics(Watched(kit.path)).decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values['bouquet_link_state{state="red"}'] == "1"
    assert values['bouquet_link_state{state="green"}'] == "0"
    assert (values["bouquet_nodes_online"], values["bouquet_nodes_enrolled"]) == ("1", "2")
    assert values['bouquet_node_online{node="ward-2"}'] == "0"
    # Rounds 0, 1, 2: accuracy 1 - 0.9 / 3, two rounds with bytes, 1.76 s each.
    assert values['bouquet_run_round{run="one"}'] == "2"
    assert values['bouquet_run_rounds{run="one"}'] == "100"
    assert float(values['bouquet_run_accuracy{run="one",measured_on="server"}']) == pytest.approx(0.7)
    assert values['bouquet_run_bytes_total{run="one",direction="to_clients"}'] == str(2 * 119388)
    assert values['bouquet_run_bytes_total{run="one",direction="from_clients"}'] == str(2 * 238776)
    assert float(values['bouquet_run_seconds_total{run="one"}']) == pytest.approx(3 * 1.76)
    assert values['bouquet_runs{state="unfinished"}'] == "1"


def test_by_an_old_status_nobody_is_said_to_be_online(tmp_path: Path) -> None:
    kit = link_kit(tmp_path / "link")
    (kit.path / "state").mkdir(exist_ok=True)
    status = '{"written": 1.0, "state": "green", "nodes": [{"name": "ward-1", "online": true}]}'
    (kit.path / "state" / "status.json").write_text(status)
    text = metrics(Watched(kit.path)).decode()
    assert "bouquet_nodes_online" not in text
    assert "bouquet_node_online" not in text
    assert 'bouquet_link_state{state="red"} 1' in text


def test_only_the_latest_runs_have_samples(tmp_path: Path) -> None:
    for i in range(LATEST + 2):
        write_run(tmp_path / f"run-{i}", 1)
    text = metrics(Watched(tmp_path)).decode()
    assert text.count("bouquet_run_round{") == LATEST
    assert f'bouquet_runs{{state="unfinished"}} {LATEST + 2}' in text
    assert "bouquet_link_state" not in text  # a folder of runs has no link


def test_prometheus_can_read_it(tmp_path: Path, browse: Browse) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    write_run(tmp_path / "a b", 2)
    answer = browse(tmp_path).ask("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {
        family.name: family for family in parser.text_string_to_metric_families(answer.read().decode())
    }
    assert families["bouquet_run_seconds"].type == "counter"
    (sample,) = families["bouquet_run_round"].samples
    assert (sample.labels, sample.value) == ({"run": "a b"}, 1)
