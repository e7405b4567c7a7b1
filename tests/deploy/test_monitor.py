"""The monitor's server: what it tells, what it refuses, and what it lives through."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server_app.deploy.calls.control import NodeState
from server_app.deploy.host.processes import Child
from server_app.deploy.kits.kit import LinkKit
from server_app.deploy.link.jobs import Jobs
from server_app.deploy.link.status import Seen, write_status
from server_app.extras.monitor import server as module
from server_app.extras.monitor.data import Watched
from server_app.extras.monitor.server import MOST_CONNECTIONS, Monitor, serve
from server_app.results.folder import RunFolder, to_json
from server_app.results.lines import read_lines
from server_app.results.rows import SHOWN_CLIENTS
from task.errors import ConfigError
from tests.support.monitor import EVIL, SECRET, client_row, round_row, write_run

ROOT = Path(__file__).resolve().parents[2]
STATIC = Path(module.__file__).with_name("static")


class Browser:
    """Asks the monitor, byte for byte what a test says."""

    def __init__(self, monitor: Monitor) -> None:
        self.port = monitor.server_port

    def ask(
        self, target: str, method: str = "GET", host: str | None = "127.0.0.1"
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, target, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.putheader("Connection", "close")
        connection.endheaders()
        return connection.getresponse()

    def get(self, target: str, status: int = 200) -> Any:
        answer = self.ask(target)
        body = answer.read()
        assert answer.status == status, body
        assert answer.headers["Content-Type"] == "application/json"
        return json.loads(body, parse_constant=pytest.fail)

    def runs(self) -> dict[str, Any]:
        return {run["name"]: run for run in self.get("/api/runs")["runs"]}


@pytest.fixture
def browse() -> Iterator[Callable[[Path], Browser]]:
    with contextlib.ExitStack() as stack:

        def start(path: Path) -> Browser:
            monitor = stack.enter_context(Monitor(Watched(path), "127.0.0.1", 0))
            thread = threading.Thread(target=monitor.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            stack.callback(thread.join)
            stack.callback(monitor.shutdown)
            return Browser(monitor)

        yield start


def link_kit(path: Path) -> LinkKit:
    kit = LinkKit(path, "0.0.0.0:9092", "127.0.0.1:8000", "host:9092", 1000, 120)
    for folder in (kit.runs, kit.jobs, kit.state):
        folder.mkdir(parents=True)
    (path / "kit.toml").write_text('kind = "link"\n')
    return kit


Browse = Callable[[Path], Browser]


def test_the_list_tells_how_far_each_run_is(tmp_path: Path, browse: Browse) -> None:
    write_run(tmp_path / "going", 4)
    done = write_run(tmp_path / "done", 3, of=2)
    done.finish({"accuracy": 0.7}, {})
    (tmp_path / "no-run").mkdir()
    write_run(tmp_path / ".hidden", 1)
    runs = browse(tmp_path).runs()
    assert set(runs) == {"going", "done"}
    assert runs["done"]["state"] == "finished"
    going = runs["going"]
    told = {
        key: going[key] for key in ("state", "algorithm", "round", "of", "accuracy", "measured_on", "job")
    }
    assert told == {
        "state": "unfinished", "algorithm": "fedavg", "round": 3, "of": 100, "accuracy": 1 - 0.9 / 4,
        "measured_on": "server", "job": None,
    }  # fmt: skip
    assert going["started"] == RunFolder(tmp_path / "going").config()["started"]
    assert abs(going["updated"] - time.time()) < 60


def test_a_run_without_central_accuracy_shows_that_of_its_clients(tmp_path: Path, browse: Browse) -> None:
    folder = write_run(tmp_path / "personal", 0)
    folder.append_round(round_row(1) | {"accuracy": None, "client_accuracy": 0.5})
    folder.append_round(round_row(2) | {"accuracy": None})
    run = browse(tmp_path).runs()["personal"]
    assert (run["accuracy"], run["measured_on"], run["round"]) == (0.5, "clients", 2)


def test_jobs_of_a_kit_join_their_runs(tmp_path: Path, browse: Browse) -> None:
    kit = link_kit(tmp_path / "link")
    jobs = Jobs(kit.jobs, kit.runs)
    write_run(kit.runs / "again", 3).finish({}, {})
    for name in ("again", "next", "bad"):
        jobs.submit(name, {"algorithm": "fedprox", "num-server-rounds": 7, "data-path": SECRET})
    jobs.update(jobs.read("again"), state="running", attempts=2)
    jobs.update(jobs.read("bad"), state="failed", attempts=1, reason=f"a bad key {EVIL}")
    runs = browse(kit.path).runs()
    assert {name: run["state"] for name, run in runs.items()} == {
        "again": "running", "next": "queued", "bad": "failed",
    }  # fmt: skip
    known = {"nodes": "", "waits": ""}
    assert runs["again"]["job"] == known | {"state": "running", "attempts": 2, "reason": ""}
    assert runs["bad"]["job"]["reason"] == f"a bad key {EVIL}"
    assert (runs["next"]["algorithm"], runs["next"]["of"], runs["next"]["round"]) == ("fedprox", 7, None)


def test_rounds_come_once_and_only_whole_lines(tmp_path: Path, browse: Browse) -> None:
    folder = write_run(tmp_path / "run", 3)
    browser = browse(tmp_path)
    base = "/api/runs/run/rounds"
    first = browser.get(base)
    assert [row["round"] for row in first["rounds"]] == [0, 1, 2]
    assert (first["restarted"], first["more"], first["problems"]) == (False, False, [])
    next_ = f"{base}?after={first['after']}&mark={first['mark']}"
    assert browser.get(next_)["rounds"] == []
    line = to_json(round_row(3, dropped=1))
    with (folder.path / "rounds.jsonl").open("ab") as file:
        file.write(line[:-20])
        file.flush()
        half = browser.get(next_)
        assert (half["rounds"], half["after"], half["problems"]) == ([], first["after"], [])
        file.write(line[-20:])
    [row] = browser.get(next_)["rounds"]
    assert (row["round"], row["asked"], row["answered"], row["quarantined_count"]) == (3, 4, 3, 1)
    assert row["seconds"] == {"roll_call": 0.01, "train": 1.253, "evaluate": 0.5, "total": 1.76}
    assert row["quarantined"] == [
        {
            "client": EVIL, "field": "arrays/w", "expected": "finite numbers", "got": "NaN <b>at</b> 0",
            "reason": f"round 3: client {EVIL}: field 'arrays/w': expected finite numbers; "
            "got NaN <b>at</b> 0",
        }
    ]  # fmt: skip


@pytest.mark.parametrize("regrown", [0, 5], ids=["shorter", "grown past where it was"])
def test_a_run_that_was_cut_back_is_told_from_its_start(tmp_path: Path, regrown: int) -> None:
    folder = write_run(tmp_path / "run", 3)
    path = folder.path / "rounds.jsonl"
    before = read_lines(path)
    folder.truncate({"rounds": len(to_json(round_row(0))), "clients": 0})
    for number in range(1, 1 + regrown):
        folder.append_round(round_row(number) | {"seconds": {"total": 9.0}})
    after = read_lines(path, before.after, before.mark)
    assert after.restarted
    assert [row["round"] for row in after.rows] == list(range(1 + regrown))


def test_a_new_run_of_the_same_name_is_told_from_its_start(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", 3).path / "rounds.jsonl"
    before = read_lines(path)
    path.rename(tmp_path / "old")
    path.write_bytes((tmp_path / "old").read_bytes())  # even if it is the same, byte for byte
    assert read_lines(path, before.after, before.mark).restarted
    path.unlink()
    gone = read_lines(path, before.after, before.mark)
    assert (gone.restarted, gone.after, gone.rows) == (True, 0, [])


def test_a_long_file_comes_in_parts(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", 40).path / "rounds.jsonl"
    rows: list[Any] = []
    chunk = read_lines(path, most=3000)
    parts = 1
    while True:
        rows += chunk.rows
        assert not chunk.restarted
        if not chunk.more:
            break
        chunk = read_lines(path, chunk.after, chunk.mark, most=3000)
        parts += 1
    assert [row["round"] for row in rows] == list(range(40))
    assert parts > 5
    one = read_lines(path, most=10)  # less than a line
    assert ([row["round"] for row in one.rows], one.more) == ([0], True)


def test_clients_have_their_last_numbers(tmp_path: Path, browse: Browse) -> None:
    folder = write_run(tmp_path / "run", 3)
    browser = browse(tmp_path)
    assert browser.get("/api/runs/run/clients")["clients"] == []
    train = {"name": EVIL, "round": 1, "phase": "train", "examples": 120, "metrics": {"train-loss": 0.5}}
    train |= {"bytes_down": 700, "bytes_up": 50}
    folder.append_clients([train, client_row(EVIL, 1, 0.5), client_row("ward-1", 1, 0.25)])
    assert browser.get("/api/runs/run/clients")["count"] == 2
    folder.append_clients([train | {"round": 2}, client_row(EVIL, 2, 0.75)])
    found = browser.get("/api/runs/run/clients")
    assert (found["count"], found["more"], found["left_out"], found["problems"]) == (2, False, False, [])
    evil, ward = found["clients"]
    assert evil == {
        "name": EVIL, "trained": 2, "accuracy": 0.75, "loss": 0.25, "train_loss": 0.5, "examples": 120,
        "round": 2, "bytes_down": 1400, "bytes_up": 100,
    }  # fmt: skip
    assert ward == {
        "name": "ward-1", "trained": 0, "accuracy": 0.25, "loss": 0.25, "train_loss": None, "examples": None,
        "round": 1, "bytes_down": None, "bytes_up": None,
    }  # fmt: skip
    folder.truncate({"rounds": 0, "clients": 0})
    folder.append_clients([client_row("late", 1, 0.5)])
    assert [client["name"] for client in browser.get("/api/runs/run/clients")["clients"]] == ["late"]


def test_of_many_clients_the_worst_are_shown(tmp_path: Path, browse: Browse) -> None:
    folder = write_run(tmp_path / "run", 1)
    many = SHOWN_CLIENTS + 10
    folder.append_clients(client_row(f"c{i}", 1, (i * 7 % many) / many) for i in range(many))
    found = browse(tmp_path).get("/api/runs/run/clients")
    assert (found["count"], len(found["clients"])) == (many, SHOWN_CLIENTS)
    assert [c["accuracy"] for c in found["clients"]] == [i / many for i in range(SHOWN_CLIENTS)]


def test_nodes_and_processes_are_those_of_the_status_file(tmp_path: Path, browse: Browse) -> None:
    kit = link_kit(tmp_path / "link")
    browser = browse(kit.path)
    assert browser.get("/api/nodes")["there"] is False
    now = time.time()
    nodes = [NodeState(7, "ward-2", b"", True, False, None), NodeState(8, EVIL, b"", True, True, now - 3)]
    child = Child("superlink", ["true"], starts=3)
    write_status(
        kit, Seen(time.monotonic(), "", nodes, [f"look at {EVIL}"]), [child], Jobs(kit.jobs, kit.runs)
    )
    found = browser.get("/api/nodes")
    assert (found["there"], found["old"], found["address"]) == (True, False, "host:9092")
    assert abs(found["written"] - now) < 60
    assert f"look at {EVIL}" in found["warnings"]
    assert [(node["name"], node["online"]) for node in found["nodes"]] == [(EVIL, True), ("ward-2", False)]
    assert found["nodes"][0]["last_seen"] == pytest.approx(now - 3)
    assert found["nodes"][1]["problem"] == "is not online, and never was"
    assert found["state"] == "red"  # its process is none
    runs = browser.get("/api/runs")
    assert (runs["state"], runs["warnings"]) == (found["state"], found["warnings"])
    [process] = found["processes"]
    assert (process["name"], process["running"], process["restarts"]) == ("superlink", False, 2)


def test_by_an_old_status_it_is_not_known_who_is_online(tmp_path: Path, browse: Browse) -> None:
    kit = link_kit(tmp_path / "link")
    node = {"name": "ward-1", "online": True, "clients": 3, "examples": 1200, "app_version": "0.1.0"}
    process = {"name": "superlink", "running": True}
    status = {"written": time.time() - 60, "nodes": [node, 7], "processes": [process], "warnings": ["a"]}
    (kit.state / "status.json").write_text(json.dumps(status))
    found = browse(kit.path).get("/api/nodes")
    [shown] = found["nodes"]
    assert (shown["online"], shown["clients"], shown["examples"], shown["app_version"]) == (
        None,
        3,
        1200,
        "0.1.0",
    )
    assert found["old"] is True
    assert [process["running"] for process in found["processes"]] == [None]
    assert found["warnings"] == ["The link is not running or does not respond. This is its last status.", "a"]
    assert found["state"] == "red"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b'{"run": {"algo'),
        ("config.json", b"\xff\xfe\x00"),
        ("config.json", b"[" * 100_000),
        ("config.json", b'[1, "' + SECRET.encode() + b'"]'),
        ("result.json", b"nonsense " + SECRET.encode()),
    ],
)
def test_damaged_files_are_named_on_the_page(
    tmp_path: Path, browse: Browse, name: str, content: bytes
) -> None:
    folder = write_run(tmp_path / "run", 2)
    (folder.path / name).write_bytes(content)
    browser = browse(tmp_path)
    for run in (browser.runs()["run"], browser.get("/api/runs/run")["run"]):
        [problem] = run["problems"]
        assert problem.startswith(f"{name}: damaged: expected a JSON object; got ")
        assert SECRET not in problem
        assert (run["round"], run["state"]) == (1, "unfinished")


def test_damaged_lines_are_named_and_the_others_shown(tmp_path: Path, browse: Browse) -> None:
    folder = write_run(tmp_path / "run", 2)
    lines = folder.path / "rounds.jsonl"
    at = lines.stat().st_size
    odd: dict[str, Any] = {
        "round": "two",
        "accuracy": True,
        "seconds": 5,
        "quarantined": [7],
        "asked": 10**400,
    }
    with lines.open("ab") as file:
        file.write(b"nonsense\n" + to_json(odd) + b'{"round": 3, "loss": NaN, "seconds": {"train": 1e999}}\n')
    folder.append_round(round_row(4))
    (folder.path / "clients.jsonl").write_bytes(b'{"name": 5, "metrics": [], "round": {}}\n7\n\n')
    browser = browse(tmp_path)
    found = browser.get("/api/runs/run/rounds")
    assert [row["round"] for row in found["rounds"]] == [0, 1, None, 3, 4]
    [problem] = found["problems"]
    assert problem.startswith(
        f"rounds.jsonl, line at byte {at}: damaged: expected a JSON object; got 8 bytes"
    )
    strange, nan = found["rounds"][2:4]
    assert (strange["accuracy"], strange["asked"], strange["seconds"], strange["quarantined"]) == (
        None,
        None,
        {},
        [],
    )
    assert (nan["loss"], nan["seconds"]) == (None, {"train": None})
    clients = browser.get("/api/runs/run/clients")
    assert [client["name"] for client in clients["clients"]] == ["5"]
    assert len(clients["problems"]) == 2
    assert browser.runs()["run"]["round"] == 4


def test_damaged_job_and_status_are_named(tmp_path: Path, browse: Browse) -> None:
    kit = link_kit(tmp_path / "link")
    (kit.jobs / "odd.json").write_text("{")
    (kit.state / "status.json").write_text("[]")
    browser = browse(kit.path)
    [problem] = browser.runs()["odd"]["problems"]
    assert problem.startswith("odd.json: damaged: expected a JSON object")
    [problem] = browser.get("/api/nodes")["problems"]
    assert problem == "status.json: damaged: expected a JSON object; got a list"


def test_a_folder_may_go_and_come_back(tmp_path: Path, browse: Browse) -> None:
    place = tmp_path / "later"
    with pytest.raises(
        ConfigError, match=r"monitor: expected a folder; .*later does not exist: give the kit"
    ):
        browse(place)
    place.mkdir()
    browser = browse(place)
    place.rmdir()
    assert browser.get("/api/runs")["problems"] == [f"The folder {place} does not exist."]
    assert browser.get("/api/nodes")["there"] is False
    place.mkdir()
    assert (browser.get("/api/runs")["problems"], browser.runs()) == ([], {})
    folder = write_run(place / "run", 2)
    assert browser.ask("/runs/run").status == 200
    for path in folder.path.iterdir():
        path.unlink()
    folder.path.rmdir()
    assert browser.get("/api/runs/run", 404)["error"] == "there is no such run, or it was deleted"
    assert browser.ask("/runs/run").status == 404
    for page in ("rounds", "clients"):
        browser.get(f"/api/runs/run/{page}", 404)
    assert browser.runs() == {}


@pytest.mark.parametrize(
    "name",
    [
        "..", "%2e%2e", "..%2foutside", "%2e%2e%2foutside", "..%2Foutside", "..%5coutside", "..%252foutside",
        "%2fetc", ".", "", "run%2f", "run%2f..%2f..%2foutside", "run%00", ".hidden", "%ff", "a" * 300,
        "run%0a",
    ],
)  # fmt: skip
def test_a_name_leads_nowhere_else(tmp_path: Path, browse: Browse, name: str) -> None:
    for folder in ("outside", "runs/run", "runs/.hidden"):
        write_run(tmp_path / folder, 1)
    browser = browse(tmp_path / "runs")
    for end in ("", "/rounds", "/clients", "/plots"):
        answer = browser.ask(f"/api/runs/{name}{end}")
        assert answer.status == 404, answer.read()
    assert browser.ask(f"/runs/{name}").status == 404
    assert browser.ask("/api/runs/run").status == 200


def test_a_path_with_dots_is_no_page(tmp_path: Path, browse: Browse) -> None:
    write_run(tmp_path / "outside", 1)
    (tmp_path / "runs").mkdir()
    browser = browse(tmp_path / "runs")
    for target in (
        "/api/runs/../outside",
        "/../../etc/passwd",
        "/app.js/../x",
        "/favicon.ico",
        "*",
    ):
        assert browser.ask(target).status == 404, target


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("127.0.0.1:8100", 200), ("localhost", 200), ("LOCALHOST:9000", 200),
        ("[::1]:8100", 200), ("192.168.1.7:8100", 200), ("evil.example", 421), ("evil.example:8100", 421),
        ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421), ("127.0.0.1@evil.example", 421),
        ("[::1", 421), ("", 421), (None, 400),
    ],
)  # fmt: skip
def test_only_requests_that_name_this_machine_are_answered(
    tmp_path: Path, browse: Browse, host: str | None, status: int
) -> None:
    write_run(tmp_path / "run", 1)
    browser = browse(tmp_path)
    for target in ("/", "/api/runs", "/app.js", "/runs/run"):
        answer = browser.ask(target, host=host)
        assert answer.status == status
        assert (b"fedavg" in answer.read()) == (status == 200 and target == "/api/runs")


def test_two_hosts_are_one_too_many(tmp_path: Path, browse: Browse) -> None:
    with socket.create_connection(("127.0.0.1", browse(tmp_path).port), timeout=30) as connection:
        connection.sendall(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 421 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_nothing_can_be_changed(tmp_path: Path, browse: Browse, method: str) -> None:
    write_run(tmp_path / "run", 1)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    browser = browse(tmp_path)
    answer = browser.ask("/api/runs/run", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    browser.get("/api/runs/run/clients")
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}


def test_head_is_get_without_its_body(tmp_path: Path, browse: Browse) -> None:
    browser = browse(tmp_path)
    for target in ("/", "/app.css"):
        answer = browser.ask(target, "HEAD")
        assert answer.read() == b""
        assert answer.headers["Content-Length"] == str(len(browser.ask(target).read()))


def test_a_body_is_not_taken_for_a_request(tmp_path: Path, browse: Browse) -> None:
    inner = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", browse(tmp_path).port), timeout=30) as connection:
        head = b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(inner)
        connection.sendall(head + inner)
        with contextlib.suppress(ConnectionResetError):
            data = b""
            while more := connection.recv(65536):
                data += more
    assert data.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "target", ["/", "/nodes", "/app.js", "/app.css", "/plots.css", "/icon.svg", "/api/runs", "/nothing"]
)
def test_every_answer_forbids_what_the_page_does_not_need(
    tmp_path: Path, browse: Browse, target: str
) -> None:
    headers = browse(tmp_path).ask(target).headers
    policy = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[key] for key in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert (policy["frame-ancestors"], policy["base-uri"], policy["form-action"]) == ("'none'",) * 3
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere(tmp_path: Path, browse: Browse) -> None:
    browser = browse(tmp_path)

    def read(name: str) -> str:
        answer = browser.ask(f"/{name}")
        assert answer.status == 200, name
        return answer.read().decode()

    scripts = [file.name for file in STATIC.glob("*.js")]
    page, style = read(""), read("app.css") + read("plots.css")
    script = "".join(read(name) for name in scripts)
    assert re.findall(r"<script[^>]*>", page) == ['<script type="module" src="/app.js">']
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|DOMParser|document\.write|\beval\(|new Function", script
    )
    assert set(re.findall(r"from '([^']*)'", script)) <= {f"./{name}" for name in scripts}
    assert set(re.findall(r"https?://[^\s'\"]+", page + script + style)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in style
    assert "@import" not in style


def test_a_wheel_holds_the_parts_of_the_page(tmp_path: Path) -> None:
    """An installation that is not editable serves the same page."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    [wheel] = tmp_path.glob("*.whl")
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from importlib import resources\n"
        "import json; folder = resources.files('server_app.extras.monitor'); assert '.whl' in str(folder)\n"
        "print(json.dumps({f.name: f.read_text('utf-8') for f in folder.joinpath('static').iterdir()}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, wheel], check=True, capture_output=True, timeout=120
    )
    assert json.loads(done.stdout) == {file.name: file.read_text("utf-8") for file in STATIC.iterdir()}


def test_only_the_monitor_needs_files_that_an_app_bundle_lacks() -> None:
    """Flower's bundle ships no HTML, CSS, JavaScript or SVG; a report is also written from a bundle."""
    shipped = {".py", ".toml", ".md", ".yaml", ".json"}
    files = [path for path in (ROOT / "server_app").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.parent for path in files if path.suffix not in shipped} == {STATIC}


def test_the_plots_are_drawn_for_their_widths(tmp_path: Path, browse: Browse) -> None:
    write_run(tmp_path / "run", 3)
    browser = browse(tmp_path)
    found = browser.get("/api/runs/run/plots?accuracy=600&loss=5&seconds=99999")
    plots = {plot["name"]: plot["drawing"] for plot in found["plots"]}
    assert list(plots) == ["accuracy", "loss", "seconds", "bytes", "replies"]
    assert {name: tree[1]["width"] for name, tree in plots.items()} == {
        "accuracy": "600", "loss": "240", "seconds": "2000", "bytes": "440", "replies": "440",
    }  # fmt: skip
    assert plots["accuracy"][1]["aria-label"].endswith("Latest: round 2: central test set 0.700")
    RunFolder(tmp_path / "run").append_round(round_row(3))
    [accuracy, *_] = browser.get("/api/runs/run/plots")["plots"]
    assert accuracy["drawing"][1]["aria-label"].endswith("Latest: round 3: central test set 0.775")
    browser.get("/api/runs/run/plots?accuracy=wide", 400)
    browser.get("/api/runs/none/plots", 404)


def test_a_run_without_rounds_has_words_instead_of_plots(tmp_path: Path, browse: Browse) -> None:
    write_run(tmp_path / "run", 0)
    plots = browse(tmp_path).get("/api/runs/run/plots")["plots"]
    assert [plot["drawing"] for plot in plots] == [None] * 5
    assert all(plot["note"] for plot in plots)


def test_what_no_run_writes_is_drawn_all_the_same(tmp_path: Path, browse: Browse) -> None:
    folder = write_run(tmp_path / "run", 1)
    odd = [
        {"round": "two", "accuracy": 0.5}, {"accuracy": 0.5},
        {"round": 2, "seconds": {EVIL: 1e299, "$x_{": -1, "round": 7}},
        {"round": 10**400}, {"round": 1e299, "loss": -1e299, "bytes_up": 1e299, "asked": 1e299},
        {"round": -3, "loss": 5e-324, "seconds": {"train": None}}, {"round": 3, "quarantined": "all"},
    ]  # fmt: skip
    with (folder.path / "rounds.jsonl").open("ab") as file:
        file.write(b"".join(to_json(row) for row in odd))
    plots = browse(tmp_path).get("/api/runs/run/plots")["plots"]
    assert all(plot["drawing"] for plot in plots)
    assert EVIL in json.dumps(plots)  # as a text


def test_no_secret_of_the_configuration_is_told(tmp_path: Path, browse: Browse) -> None:
    kit = link_kit(tmp_path / "link")
    write_run(kit.runs / "run", 2)
    Jobs(kit.jobs, kit.runs).submit("run", {"data-path": SECRET, "seed": 3})
    (kit.path / "superexec.secret").write_text(SECRET)
    browser = browse(kit.path)
    assert browser.get("/api/runs/run")["config"]["num-server-rounds"] == "100"
    for target in (
        "/api/runs",
        "/api/runs/run",
        "/api/runs/run/rounds",
        "/api/runs/run/clients",
        "/api/runs/run/plots",
        "/api/nodes",
    ):
        assert SECRET.encode() not in browser.ask(target).read(), target


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "9" * 30, "%D9%A3"])
def test_a_bad_number_is_refused(tmp_path: Path, browse: Browse, after: str) -> None:
    write_run(tmp_path / "run", 1)
    browse(tmp_path).get(f"/api/runs/run/rounds?after={after}", 400)


def test_too_many_connections_are_closed_and_the_rest_served(tmp_path: Path, browse: Browse) -> None:
    browser = browse(tmp_path)
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", browser.port)
        idle = [
            stack.enter_context(socket.create_connection(address, timeout=30))
            for _ in range(MOST_CONNECTIONS)
        ]
        for connection in idle:  # each is taken only once it is answered
            connection.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(20).startswith(b"HTTP/1.1 200")
        extra = stack.enter_context(socket.create_connection(address, timeout=30))
        with contextlib.suppress(ConnectionResetError):
            assert extra.recv(10) == b""
        for connection in idle[:5]:
            connection.close()
        end = time.monotonic() + 30
        status = 0
        while status != 200 and time.monotonic() < end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = browser.ask("/api/runs").status
        assert status == 200


def test_a_silent_connection_is_closed(
    tmp_path: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Handler, "timeout", 0.2)
    with socket.create_connection(("127.0.0.1", browse(tmp_path).port), timeout=30) as connection:
        connection.sendall(b"GET / HT")
        assert connection.recv(10) == b""


def test_a_fault_of_ours_is_told_without_its_details(
    tmp_path: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    browser = browse(tmp_path)

    def fail(self: Watched) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(Watched, "runs", fail)
    assert browser.get("/api/runs", 500) == {"error": "the monitor failed: see its terminal"}
    assert SECRET in capfd.readouterr().err
    assert browser.get("/api/nodes")["there"] is False


def test_a_port_in_use_is_said(tmp_path: Path, browse: Browse) -> None:
    port = browse(tmp_path).port
    with pytest.raises(ConfigError, match=rf"--port {port}: another program listens there; choose another"):
        Monitor(Watched(tmp_path), "127.0.0.1", port)


def test_an_address_of_somebody_else_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on --host 203\.0\.113\.1 --port 0: "):
        Monitor(Watched(tmp_path), "203.0.113.1", 0)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_everybodys_address_is_warned_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    host: str,
    warned: bool,
) -> None:
    def stop(self: Monitor) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Monitor, "serve_forever", stop)
    serve(tmp_path, host, 0)
    out, err = capsys.readouterr()
    assert re.search(rf"http://{re.escape(host)}:\d+/", out)
    assert ("no password" in err) == warned


def test_what_is_no_place_of_runs_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 1)
    (tmp_path / "file").write_text("")
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "kit.toml").write_text('kind = "node"\nname = "ward-1"\n')
    with pytest.raises(ConfigError, match=r"is the result folder of one run: .*, here "):
        Watched(tmp_path / "run")
    with pytest.raises(ConfigError, match="expected a folder; got the file"):
        Watched(tmp_path / "file")
    with pytest.raises(ConfigError, match="is the kit of a node"):
        Watched(tmp_path / "node")
