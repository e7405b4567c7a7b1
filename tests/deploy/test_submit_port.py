"""The link's port for Flower's own commands and submitters: who may call what, and what starts a run."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import stat
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server_app.deploy.calls.control import public_key
from server_app.deploy.calls.control_calls import (
    STREAM,
    Frames,
    framed,
    scalar,
)
from server_app.deploy.host.host import PROJECT
from server_app.deploy.kits.kit import (
    OWNER,
    TOKEN_OF,
    LinkKit,
    SubmitterKit,
    proof,
    read_link_kit,
    read_submitting_kit,
)
from server_app.deploy.kits.provision import provision
from server_app.deploy.link import submitters
from server_app.deploy.link.follow import submit
from server_app.deploy.link.jobs import FINISHED, RUNNING, STOPPED, Job, Jobs
from server_app.deploy.link.runner import bundle
from server_app.deploy.link.submission import submission
from server_app.deploy.link.submit_port import CALLS, FILES, RESULTS, STATUS, SubmitPort
from server_app.deploy.link.submitters import AUDIT, MOST_JOBS, caller_of
from server_app.results.folder import RunFolder
from server_app.run.confined import KIT, submitter_of
from task import timing
from task.errors import BouquetError, ConfigError
from task.flower.services import CONTROL
from tests.support.asgi import Caller
from tests.support.contents import contents
from tests.support.faults import FullDisk
from tests.support.runtime import crashing_bundle

KEYS: dict[str, Any] = {"dataset": "digits", "num-clients": 4}
NODES = [{"node_id": 7, "name": "ward-1", "status": "online"}]


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    provision(tmp_path / "kits", "127.0.0.1:9092", ["ward-1"], submitters=["alice", "bob"])
    return tmp_path / "kits"


@pytest.fixture
def kit(kits: Path) -> LinkKit:
    return read_link_kit(kits / "link")


class SuperLink:
    """The Control API of a SuperLink, which knows the logs of runs."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.logs: dict[int, list[tuple[str, float]]] = {}
        self.broken = 0  # calls that fail before one succeeds
        self.cut = 0  # answers that break off after their first line

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.called.append(request.url.path)
        if request.url.path == CONTROL.http_path("ListNodes"):
            return httpx.Response(
                200, content=CONTROL.answer("ListNodes", nodes_info=NODES).SerializeToString()
            )
        if self.broken:
            self.broken -= 1
            raise httpx.ConnectError("it restarts")
        assert request.url.path == CONTROL.http_path("StreamLogs")
        asked = CONTROL.request("StreamLogs").FromString(request.content)
        lines = [line for line in self.logs.get(asked.run_id, []) if line[1] > asked.after_timestamp]
        messages = [
            CONTROL.answer("StreamLogs", log_output=text, latest_timestamp=at).SerializeToString()
            for text, at in lines
        ]
        cut, self.cut = self.cut > 0, max(self.cut - 1, 0)

        async def content() -> AsyncIterator[bytes]:
            for message in messages:
                yield framed(message)
                if cut:
                    raise httpx.ReadError("it is killed")

        return httpx.Response(200, content=content())


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


class Person:
    """Who calls the port with a token."""

    def __init__(self, kit: LinkKit, superlink: SuperLink, token: str) -> None:
        client = httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="https://superlink")
        self._caller = Caller(SubmitPort(kit, client))
        self.headers = {"authorization": f"Bearer {token}"}

    def post(self, name: str, **fields: Any) -> httpx.Response:
        return self._caller.post(
            CONTROL.http_path(name), self.headers, CONTROL.request(name, **fields).SerializeToString()
        )

    def __call__(self, name: str, **fields: Any) -> Any:
        answer = self.post(name, **fields)
        assert answer.status_code == 200, answer.text
        return CONTROL.answer_type(name).FromString(answer.content)

    def get(self, path: str) -> httpx.Response:
        return self._caller.call("GET", path, self.headers)

    def raw(self, method: str, path: str, headers: Any, content: bytes = b"") -> httpx.Response:
        return self._caller.call(method, path, headers, content)


def person(kits: Path, superlink: SuperLink, name: str) -> Person:
    kit = read_submitting_kit(kits / name)
    return Person(read_link_kit(kits / "link"), superlink, kit.token)


def job_of(kit: LinkKit, name: str, submitter: str, **changes: Any) -> Job:
    jobs = Jobs(kit.jobs, kit.runs)
    job = submit(kit, KEYS | {"run-name": name}, submitter=submitter)
    return jobs.update(job, **changes) if changes else job


# ---------------------------------------------------------------- who calls


def test_a_caller_without_a_valid_token_is_refused(
    kits: Path, kit: LinkKit, superlink: SuperLink, capfd: pytest.CaptureFixture[str]
) -> None:
    """As another account of the machine would, which reaches a port of loopback like everybody."""
    alice = read_submitting_kit(kits / "alice")
    assert isinstance(alice, SubmitterKit)
    listed = kit.submitter_keys["alice"].read_text().split()[1]
    secret = kit.secret.read_bytes()
    wrong: list[Any] = [
        {},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {proof(secret)}"},  # the link's own, for the Control API
        {"authorization": f"Bearer {listed}"},  # what the link checks with, which a thief of its kit has
        {"authorization": f"Bearer {alice.secret.read_bytes().hex()}"},
        {"authorization": f"Basic {alice.token}"},
        {"authorization": alice.token},
        {"authorization": f"Bearer {alice.token}x"},
        {"authorization": b"Bearer \xff\xfe"},
        [("authorization", f"Bearer {alice.token}")] * 2,
    ]
    stranger = Person(kit, superlink, "")
    paths = [*map(CONTROL.http_path, CALLS), CONTROL.http_path("RegisterNode"), "/health", "/docs", "/"]
    for headers in wrong:
        for path in paths:
            answer = stranger.raw("POST", path, headers, b"x" * 100)
            assert answer.status_code == 401, (path, headers, answer.text)
            assert answer.headers.get("www-authenticate") is None  # else `flwr` tries to log in
        assert stranger.raw("GET", STATUS, headers).status_code == 401
    assert not superlink.called
    assert not kit.jobs.exists()
    assert alice.token not in "".join(capfd.readouterr())


def test_the_calls_that_are_open_are_listed_and_none_turns_nodes_out(
    kits: Path, superlink: SuperLink
) -> None:
    assert set(CALLS) == {"StartRun", "StopRun", "ListRuns", "ListNodes", "StreamLogs"}
    others = {CONTROL.http_path(name) for name in CONTROL.calls} - {CONTROL.http_path(name) for name in CALLS}
    assert CONTROL.http_path("UnregisterNode") in others
    for name in ("link", "alice"):
        caller = person(kits, superlink, name)
        for path in [*others, "/v1/runtime/pull-messages", "/v1/fleet/pull-messages", "/docs"]:
            assert caller.raw("POST", path, caller.headers).status_code == 403, path
        assert caller.get(CONTROL.http_path("ListNodes")).status_code == 403
    assert not superlink.called


def test_a_revoked_submitter_is_refused_at_once_and_a_new_secret_is_another_ones(
    kits: Path, superlink: SuperLink
) -> None:
    alice, bob = (person(kits, superlink, name) for name in ("alice", "bob"))
    old = (kits / "link" / "submitters" / "alice.pub").read_bytes()
    assert alice.post("ListRuns").status_code == 200
    provision(kits, revoke=["alice"])
    assert alice.post("ListRuns").status_code == 401
    assert bob.post("ListRuns").status_code == 200
    # A kit that is copied over an older one leaves the older one's files in place.
    (kits / "link" / "submitters" / "alice.pub").write_bytes(old)
    assert alice.post("ListRuns").status_code == 401
    (kits / "link" / "submitters" / "alice.pub").unlink()
    provision(kits, submitters=["alice"])
    assert alice.post("ListRuns").status_code == 401
    assert person(kits, superlink, "alice").post("ListRuns").status_code == 200


@pytest.mark.parametrize("text", [b"", b"bouquet-submitter", b"bouquet-submitter !!! alice", b"x  y\n"])
def test_a_damaged_file_of_a_submitter_lets_nobody_in_and_keeps_nobody_out(
    kits: Path, kit: LinkKit, text: bytes
) -> None:
    tokens = [read_submitting_kit(kits / name).token for name in ("alice", "bob", "link")]
    kit.submitter_keys["alice"].write_bytes(text)
    assert [caller_of(kit, token) for token in tokens] == ["", "bob", OWNER]
    assert caller_of(kit, "") == caller_of(kit, "é") == ""


def test_a_request_that_is_too_long_is_refused_before_it_is_read(kits: Path, superlink: SuperLink) -> None:
    alice = person(kits, superlink, "alice")
    for name, most in CALLS.items():
        for length in (str(most + 1), "-1"):
            headers = alice.headers | {"content-length": length}
            assert alice.raw("POST", CONTROL.http_path(name), headers).status_code == 413, name
    assert alice.raw("POST", CONTROL.http_path("StopRun"), alice.headers, b"\xff" * 9).status_code == 400


# ---------------------------------------------------------------- whose runs


def test_a_submitter_sees_stops_and_fetches_its_own_runs_alone(
    kits: Path, kit: LinkKit, superlink: SuperLink
) -> None:
    mine, theirs = job_of(kit, "mine", "alice"), job_of(kit, "theirs", "bob")
    (kit.runs / "theirs").mkdir(parents=True)
    (kit.runs / "theirs" / "model.safetensors").write_bytes(b"theirs")
    alice, owner = person(kits, superlink, "alice"), person(kits, superlink, "link")
    assert set(alice("ListRuns").run_dict) == {mine.number}
    assert set(owner("ListRuns").run_dict) == {mine.number, theirs.number}
    assert set(owner("ListRuns", limit=1).run_dict) == {theirs.number}  # the newest
    file = f"{RESULTS}{theirs.number}/model.safetensors"
    for number in (theirs.number, 0, 2**64 - 1):
        for name in ("StopRun", "ListRuns", "StreamLogs"):
            answer = alice.post(name, run_id=number)
            assert (answer.status_code, "theirs" in answer.text) == (404, False), answer.text
    assert alice.get(file).status_code == 404
    assert owner.get(file).content == b"theirs"
    assert alice("StopRun", run_id=mine.number).success
    jobs = Jobs(kit.jobs, kit.runs)
    assert (jobs.shall_stop(mine), jobs.shall_stop(theirs)) == (True, False)
    assert owner("StopRun", run_id=theirs.number).success
    did = [line.split(" ", 1)[1] for line in (kit.logs / AUDIT).read_text().splitlines()]
    assert did == [
        f"alice submitted run mine ({mine.number})",
        f"bob submitted run theirs ({theirs.number})",
        "alice asked to stop run mine",
        "link asked to stop run theirs",
    ]
    assert stat.S_IMODE((kit.logs / AUDIT).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "place",
    [
        "{}/../../superexec.secret", "{}/..%2f..%2fsuperexec.secret", "{}/checkpoint/state", "{}/.lock",
        "{}/", "{}", "x/model.safetensors", "²/config.json", "9" * 5000, "{}/config.json/..", "",
    ],
)  # fmt: skip
def test_only_the_files_of_a_result_are_given_away(
    kits: Path, kit: LinkKit, superlink: SuperLink, place: str
) -> None:
    job = job_of(kit, "mine", "alice")
    for name in (*FILES, ".lock", "checkpoint/state"):
        (kit.runs / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (kit.runs / "mine" / name).write_text(name)
    alice = person(kits, superlink, "alice")
    assert [alice.get(f"{RESULTS}{job.number}/{name}").text for name in FILES] == list(FILES)
    answer = alice.get(RESULTS + place.format(job.number))
    assert answer.status_code in (403, 404)
    assert kit.secret.read_bytes() not in answer.content


def test_runs_are_listed_as_flower_shows_them(kits: Path, kit: LinkKit, superlink: SuperLink) -> None:
    job_of(kit, "queued", "alice")
    for name, state in (("runs", RUNNING), ("over", FINISHED), ("ended", STOPPED)):
        job_of(kit, name, "alice", state=state, runs=(1,), reason="stopped by the user" * (state == STOPPED))
    listed = person(kits, superlink, "alice")("ListRuns")
    rows = {run.federation: (run.status.status, run.status.sub_status) for run in listed.run_dict.values()}
    assert rows == {
        "@alice/queued": ("pending", ""),
        "@alice/runs": ("running", ""),
        "@alice/over": ("finished", "completed"),
        "@alice/ended": ("finished", "stopped"),
    }
    assert listed.now


def test_the_nodes_are_shown_by_their_names(kits: Path, superlink: SuperLink) -> None:
    (node,) = person(kits, superlink, "alice")("ListNodes").nodes_info
    assert (node.node_id, node.owner_name) == (7, "ward-1")


def test_the_status_has_a_submitters_runs_alone(kits: Path, kit: LinkKit, superlink: SuperLink) -> None:
    job_of(kit, "mine", "alice")
    job_of(kit, "theirs", "bob")
    kit.status.parent.mkdir()
    runs = [{"name": name} for name in ("mine", "theirs")]
    kit.status.write_text(json.dumps({"runs": runs, "warnings": ["theirs"], "processes": [{"pid": 1}]}))
    answer = person(kits, superlink, "alice").get(STATUS)
    assert [run["name"] for run in answer.json()["runs"]] == ["mine"]
    assert "theirs" not in answer.text
    assert "theirs" in person(kits, superlink, "link").get(STATUS).text


# ---------------------------------------------------------------- logs


def logged(caller: Person, number: int) -> str:
    answer = caller.post("StreamLogs", run_id=number)
    assert answer.headers["content-type"] == STREAM
    return "".join(
        CONTROL.answer_type("StreamLogs").FromString(frame).log_output
        for frame in Frames().read(answer.content)
    )


def test_a_log_has_all_attempts_of_a_job_and_ends_with_it(
    kits: Path, kit: LinkKit, superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on over a SuperLink that restarts, and repeats nothing."""
    monkeypatch.setattr(timing, "FOLLOW_S", 0.001)
    monkeypatch.setattr(timing, "RETRY_LONGEST_S", 0.001)
    job = job_of(kit, "mine", "alice", state=FINISHED, runs=(11, 12))
    superlink.logs = {11: [("first\n", 1.0), ("killed\n", 2.0)], 12: [("second\n", 3.0)]}
    superlink.broken, superlink.cut = 2, 1
    log = logged(person(kits, superlink, "alice"), job.number)
    assert log == "first\nkilled\nsecond\njob mine is finished\n"
    assert superlink.called.count(CONTROL.http_path("StreamLogs")) == 5


def test_the_log_of_a_queued_job_says_so_and_goes_on(
    kits: Path, kit: LinkKit, superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, states = Jobs(kit.jobs, kit.runs), [{}, {"state": RUNNING, "runs": (11,)}, {"state": FINISHED}]
    job = job_of(kit, "mine", "alice")
    superlink.logs = {11: [("trains\n", 1.0)]}

    async def sleep(seconds: float) -> None:
        current = jobs.read("mine")
        assert current is not None
        jobs.update(current, **states.pop(0))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    log = logged(person(kits, superlink, "alice"), job.number)
    assert log == "job mine is queued\ntrains\njob mine is finished\n"


def test_a_log_that_a_submitter_follows_ends_when_it_is_revoked(
    kits: Path, kit: LinkKit, superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the run says nothing; another's goes on."""
    monkeypatch.setattr(timing, "NODES_LOOK_S", 0.01)
    jobs, job = Jobs(kit.jobs, kit.runs), job_of(kit, "mine", "alice", state=RUNNING, runs=(11,))
    theirs = job_of(kit, "theirs", "bob", state=RUNNING, runs=(11,))
    superlink.logs = {11: [("trains\n", 1.0)]}
    alice, bob = (person(kits, superlink, name) for name in ("alice", "bob"))
    sleep = asyncio.sleep

    async def revoke(seconds: float) -> None:
        if "alice" in read_link_kit(kits / "link").submitter_keys:
            await asyncio.to_thread(provision, kits, revoke=["alice"])
        await sleep(3600)

    monkeypatch.setattr(timing, "FOLLOW_S", 0.0)
    monkeypatch.setattr(asyncio, "sleep", revoke)
    assert logged(alice, job.number) == "trains\nthe kit of who follows this log was revoked\n"
    monkeypatch.setattr(asyncio, "sleep", sleep)
    jobs.update(theirs, state=FINISHED)
    assert logged(bob, theirs.number) == "trains\njob theirs is finished\n"


def test_frames_are_read_however_the_stream_is_cut() -> None:
    stream = framed(b"one") + framed(b"") + framed(b"x" * 300)
    for size in (1, 3, 5, 1000):
        frames = Frames()
        cut = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert [frame for part in cut for frame in frames.read(part)] == [b"one", b"", b"x" * 300]


# ---------------------------------------------------------------- what a run is started from


@pytest.fixture(scope="module")
def installed_app() -> bytes:
    return bundle()


def started(fab: bytes, keys: dict[str, Any], **more: Any) -> bytes:
    """Return what `flwr run` sends."""
    config = {key: scalar(value) for key, value in keys.items()}
    fields = {"fab": {"content": fab}, "override_config": config} | more
    return bytes(CONTROL.request("StartRun", **fields).SerializeToString())


def edited(fab: bytes, name: str, old: str, new: str) -> bytes:
    """Return a bundle in which a file has another text."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(fab)) as source, zipfile.ZipFile(made, "w") as target:
        for member in source.infolist():
            data = source.read(member)
            if member.filename == name:
                assert old.encode() in data
                data = data.replace(old.encode(), new.encode())
            target.writestr(member, data)
    return made.getvalue()


def test_a_flwr_run_becomes_a_job_of_who_submits_it(kit: LinkKit, installed_app: bytes) -> None:
    keys = KEYS | {"run-name": "a", "learning-rate": 0.5, "stack": 1, "resume": False}
    job = submission(kit, "alice", started(installed_app, keys))
    assert (job.name, job.submitter, Jobs(kit.jobs, kit.runs).read("a")) == ("a", "alice", job)
    direct = submit(kit, KEYS | {"run-name": "b", "learning-rate": 0.5, "stack": 1, "resume": False})
    assert dict(job.keys) | {"run-name": "b"} == direct.keys
    assert direct.submitter == OWNER


def test_the_port_hands_a_run_to_a_process_of_its_own(
    kits: Path, kit: LinkKit, superlink: SuperLink, installed_app: bytes
) -> None:
    alice = person(kits, superlink, "alice")
    config = {key: scalar(value) for key, value in (KEYS | {"run-name": "a"}).items()}
    answer = alice("StartRun", fab={"content": installed_app}, override_config=config)
    job = Jobs(kit.jobs, kit.runs).read("a")
    assert job is not None
    assert (answer.run_id, answer.federation, job.submitter) == (job.number, "@alice/a", "alice")
    refused = alice.post("StartRun", fab={"content": b"PK"})
    assert (refused.status_code, "installed at the link" in refused.text) == (400, True)


def test_values_in_a_bundles_project_count_as_if_they_were_given(kit: LinkKit, installed_app: bytes) -> None:
    """`flwr run` users edit them there; with the link's own values the run would silently be another."""
    own = edited(installed_app, PROJECT, "learning-rate = 0.1\n", "learning-rate = 0.125\n")
    job = submission(kit, "alice", started(own, KEYS | {"run-name": "a"}))
    assert job.keys["learning-rate"] == 0.125
    job = submission(kit, "alice", started(own, KEYS | {"run-name": "b", "learning-rate": 0.25}))
    assert job.keys["learning-rate"] == 0.25


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('data-path = ""', 'data-path = "superexec.secret"', '"data-path"'),
        ("[tool.flwr.app.config]", "[tool.flwr.app.config]\nnothing = 1", '"nothing"'),
        ("[tool.flwr.app.config]", "[tool.flwr.app.config]\nseed-list = [1, 2]", "bool, number or text"),
        ("[tool.flwr.app.config]", "[tool.flwr.app.config", "TOMLDecodeError"),
        ("[tool.flwr.app.config]", "x = " + "[" * 5000, "RecursionError|TOMLDecodeError"),
        ("[tool.flwr.app.config]", "[tool.flwr.app.another]\n", "a"),
    ],
)
def test_a_bundles_project_is_not_believed(
    kit: LinkKit, installed_app: bytes, old: str, new: str, says: str
) -> None:
    body = started(edited(installed_app, PROJECT, old, new), KEYS | {"run-name": "a"})
    if says == "a":  # without a table of its own, the link's values count
        assert submission(kit, "alice", body).name == "a"
        return
    with pytest.raises(ConfigError, match=says):
        submission(kit, "alice", body)
    assert not list(kit.jobs.glob("*.json"))


def test_another_app_is_refused(kit: LinkKit, installed_app: bytes, tmp_path: Path) -> None:
    other = crashing_bundle(tmp_path / "app")
    changed = edited(installed_app, ".info/CONTENT", "server_app/app.py,", "server_app/app.py,0")
    for fab, says in [(other, "another app"), (changed, r"server_app/app\.py"), (b"", "cannot be read")]:
        for caller in (OWNER, "alice"):
            with pytest.raises(ConfigError, match=f"installed at the link, bouquet .*: .*{says}"):
                submission(kit, caller, started(fab, KEYS))
    assert not kit.jobs.exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"app_spec": "@someone/app"}, "app-spec"),
        ({"federation": "@none/default"}, "federation"),
        ({"override_federation_config": {"num_supernodes": 9}}, "override-federation-config"),
        ({"series_id": 3}, "series-id"),
        ({"override_config": {"seed": {"bytes": b"1"}}}, 'key "seed": expected a bool'),
        ({"override_config": {"seed": {}}}, 'key "seed": expected a bool'),
        ({"override_config": {f"k{i}": scalar(i) for i in range(1001)}}, "at most 1000"),
        ({"override_config": {"run-name": scalar("x" * 70_000)}}, "letters"),
    ],
)
def test_what_a_link_would_ignore_is_refused(
    kit: LinkKit, installed_app: bytes, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        submission(kit, OWNER, started(installed_app, KEYS, **more))
    with pytest.raises(ConfigError, match="request of StartRun"):
        submission(kit, OWNER, b"\xff\xff")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"data-path": "superexec.secret"}, '"data-path": expected none from alice'),
        ({"initial-model": "runs/theirs/model.safetensors"}, '"initial-model": expected none'),
        ({"cache-dir": "x"}, '"cache-dir"'),
        ({"runs-dir": "x"}, '"runs-dir"'),
        ({"tracker": "mlflow"}, '"tracker"'),
        ({"model": "os:system"}, "os:system"),
        ({"metrics": "accuracy,net:mine"}, "net:mine"),
        ({"dataset": "hf:mnist"}, "hf:mnist"),
        ({"run-name": "theirs", "resume": True}, "'theirs'"),
        ({"run-name": "owners", "resume": True}, "'owners'"),
        ({"run-name": "theirs"}, "'theirs'"),
        ({"run-name": "x/../../jobs/theirs"}, "expected a free name"),
        ({"run-name": "nobodys", "resume": True}, "got 'nobodys'$"),
        ({"run-name": "", "resume": True}, "got ''$"),
        ({"node-names": "ward-9"}, "ward-9"),
    ],
)
def test_a_submitter_names_nothing_of_the_machine_nor_others_runs(
    kit: LinkKit, keys: dict[str, Any], says: str
) -> None:
    job_of(kit, "theirs", "bob", state=FINISHED)
    RunFolder.create(kit.runs / "theirs", {"run": {}, "submitter": "bob"}, resume=False)
    RunFolder.create(kit.runs / "owners", {"run": {}}, resume=False)  # by a link of before
    for name in ("theirs", "owners"):
        (kit.runs / name / "result.json").write_text("{}")
    before = (kit.jobs / "theirs.json").read_bytes()
    with pytest.raises(ConfigError, match=says):
        submit(kit, KEYS | {"run-name": "a"} | keys, submitter="alice")
    assert [path.name for path in kit.jobs.glob("*.json")] == ["theirs.json"]
    assert (kit.jobs / "theirs.json").read_bytes() == before


def test_an_unnamed_run_gets_a_name_that_is_nobody_elses(kit: LinkKit) -> None:
    """A failed run has a job and no result: the file of its job is not overwritten by another's."""
    jobs = Jobs(kit.jobs, kit.runs)
    first = jobs.update(submit(kit, KEYS), state=STOPPED)
    second = submit(kit, KEYS, submitter="alice")
    assert second.name == f"{first.name}-2"
    assert jobs.read(first.name) == first


def test_a_submitter_does_not_fill_the_queue(kit: LinkKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitters, "MOST_JOBS", 2)
    assert MOST_JOBS > 2
    one = job_of(kit, "one", "alice")
    job_of(kit, "two", "alice")
    with pytest.raises(ConfigError, match="at most 2 runs of alice"):
        job_of(kit, "three", "alice")
    job_of(kit, "bobs", "bob")
    Jobs(kit.jobs, kit.runs).update(one, state=FINISHED)
    job_of(kit, "three", "alice")


def test_a_server_app_writes_down_who_submitted_its_run(
    kit: LinkKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_of(kit, "mine", "alice")
    assert submitter_of("mine") == ""  # a simulation
    monkeypatch.setitem(os.environ, KIT, str(kit.path))
    assert [submitter_of(name) for name in ("mine", "other")] == ["alice", ""]


# ---------------------------------------------------------------- kits


def test_a_links_kit_cannot_call_as_a_submitter_nor_a_submitters_kit_as_the_link(kits: Path) -> None:
    alice, link = read_submitting_kit(kits / "alice"), read_link_kit(kits / "link")
    assert isinstance(alice, SubmitterKit)
    assert (alice.link, link.submit) == ("127.0.0.1:9096", "0.0.0.0:9096")
    assert {p.name for p in alice.path.iterdir()} == {"README.txt", "ca.crt", "kit.toml", "submitter.secret"}
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in alice.path.iterdir())
    there = b"".join(data for _, data in contents(link.path))
    for secret in (alice.secret.read_bytes(), alice.token.encode(), bytes.fromhex(alice.token)):
        assert secret not in there
    assert len({alice.token, link.token, read_submitting_kit(kits / "bob").token}) == 3
    with pytest.raises(ConfigError, match="expected the kit of a SuperLink; got that of the submitter"):
        read_link_kit(kits / "alice")
    with pytest.raises(ConfigError, match="expected the kit of a link or a submitter; got that of the node"):
        read_submitting_kit(kits / "ward-1")
    alice.secret.chmod(0o644)
    with pytest.raises(ConfigError, match=r"submitter\.secret: expected mode 0600"):
        read_submitting_kit(kits / "alice")


def test_submitters_are_provisioned_moved_and_revoked_as_nodes_are(kits: Path) -> None:
    before = (kits / "alice" / "submitter.secret").read_bytes()
    provision(kits, submitters=["alice", "carol"])
    assert (kits / "alice" / "submitter.secret").read_bytes() == before
    for wrong, says in [("ward-1", "no node has"), ("Alice", "capitals"), ("link", "expected none of ca")]:
        with pytest.raises(ConfigError, match=says):
            provision(kits, submitters=[wrong])
    with pytest.raises(ConfigError, match="no node has"):
        provision(kits, nodes=["alice"])
    with pytest.raises(ConfigError, match="different names"):
        provision(kits, submitters=["bob"], revoke=["bob"])
    made = provision(kits, "moved.example:9092")
    (line,) = [line for line in made.lines if line.name == "alice"]
    assert (line.kind, line.done) == ("submitter", "address changed")
    assert [read_submitting_kit(kits / n).link for n in ("alice", "bob")] == ["moved.example:9096"] * 2  # type: ignore[union-attr]
    made = provision(kits, revoke=["bob"])
    assert (kits / "revoked" / "bob" / "submitter.secret").exists()
    assert sorted(p.name for p in (kits / "link" / "revoked").iterdir()) == ["bob.pub"]
    assert read_link_kit(kits / "link").revoked_nodes == ()  # a link that took it for a node's lost its nodes
    with pytest.raises(ConfigError, match=r"bob\.pub: expected a node's public key.* Unsupported"):
        public_key(kits / "link" / "revoked" / "bob.pub")
    assert sorted(p.name for p in (kits / "link" / "submitters").iterdir()) == ["alice.pub", "carol.pub"]
    assert made.lines[0].changed == ("revoked",)


def test_a_full_disk_leaves_no_half_made_submitter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command finishes what a failed one left, and a revoked secret stays revoked."""

    def work(kits: Path, revoked: list[str]) -> None:
        provision(kits, submitters=["alice"])
        provision(kits, revoke=["alice"])
        revoked.append(token(kits / "revoked" / "alice"))
        provision(kits, submitters=["alice"])

    def token(folder: Path) -> str:
        return proof((folder / "submitter.secret").read_bytes(), TOKEN_OF)

    provision(tmp_path / "before", "127.0.0.1:9092", ["ward-1"])
    disk = FullDisk(monkeypatch)
    work(shutil.copytree(tmp_path / "before", tmp_path / "undisturbed"), [])
    total = disk.syncs
    assert total > 20
    for moment in range(1, total + 1):
        kits, revoked = shutil.copytree(tmp_path / "before", tmp_path / str(moment)), list[str]()
        disk.begin(moment)
        with pytest.raises(BouquetError, match="could not be written: No space left on device"):
            work(kits, revoked)
        disk.begin(-1)
        provision(kits, submitters=["alice"])
        link, alice = read_link_kit(kits / "link"), read_submitting_kit(kits / "alice")
        assert caller_of(link, alice.token) == "alice", moment
        assert [caller_of(link, old) for old in revoked] == [""] * len(revoked), moment
        assert not list(kits.rglob(".*"))


def test_an_older_links_kit_learns_of_submitters(tmp_path: Path) -> None:
    kits = tmp_path / "kits"
    provision(kits, "host.example:9092", ["ward-1"])
    shutil.rmtree(kits / "link" / "submitters")
    config = kits / "link" / "kit.toml"
    lines = config.read_text().splitlines()
    config.write_text("\n".join(line for line in lines if not line.startswith("# submit")) + "\n")
    with pytest.raises(ConfigError, match='key "submit": expected HOST:PORT that submitters come to'):
        provision(kits, submitters=["alice"])
    config.write_text('submit = "[::]:7000"\n' + config.read_text())
    made = provision(kits, submitters=["alice"])
    assert made.lines[0].changed == ("submitters",)
    assert read_submitting_kit(kits / "alice").link == "host.example:7000"  # type: ignore[union-attr]


def test_a_new_submitter_at_a_link_that_takes_none_is_told_of(tmp_path: Path) -> None:
    kits = tmp_path / "kits"
    provision(kits, "host.example:9092", ["ward-1"])
    assert read_link_kit(kits / "link").submit == ""  # off, unless it is asked for
    made = provision(kits, submitters=["alice"])
    assert any('link: set submit = "0.0.0.0:9096"' in remark for remark in made.remarks)
