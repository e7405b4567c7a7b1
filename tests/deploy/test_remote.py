"""``bouquet run --link`` and ``bouquet status`` with a submitter's kit, at the link's port with TLS."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from itertools import islice
from pathlib import Path
from socket import socket
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner
from uvicorn import Server

from server_app.cli import exits
from server_app.cli.main import app
from server_app.deploy.calls.control_calls import Calls, LinkError
from server_app.deploy.calls.fleet_relay import serve
from server_app.deploy.host.host import free_port
from server_app.deploy.kits.kit import LinkKit, SubmitterKit, read_kit, read_link_kit
from server_app.deploy.kits.provision import provision
from server_app.deploy.link import remote
from server_app.deploy.link.follow import submit
from server_app.deploy.link.jobs import FAILED, FINISHED, STOPPED, Job, Jobs
from server_app.deploy.link.status import Seen, write_status
from server_app.deploy.link.submit_port import SubmitPort
from task import timing
from task.errors import BouquetError, ConfigError
from task.flower.services import CONTROL
from tests.deploy.test_submit_port import SuperLink
from tests.support.asgi import listening

KEYS = {"dataset": "digits", "num-clients": 4}


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


@pytest.fixture
def kits(tmp_path: Path, superlink: SuperLink) -> Iterator[Path]:
    provision(tmp_path / "kits", "127.0.0.1:9092", ["ward-1"], submitters=["alice", "bob"])
    port = free_port()
    for config in (tmp_path / "kits").glob("*/kit.toml"):
        config.write_text(re.sub(r':9096"', f':{port}"', config.read_text()))
    with submit_port(read_link_kit(tmp_path / "kits" / "link"), superlink):
        yield tmp_path / "kits"


def submit_port(kit: LinkKit, superlink: SuperLink) -> AbstractContextManager[object]:
    """Serve a link's port in a thread."""

    @asynccontextmanager
    async def port() -> AsyncIterator[tuple[Server, socket]]:
        client = httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="https://superlink")
        certificate, key = str(kit.server_certificate), str(kit.server_key)
        yield serve(SubmitPort(kit, client), kit.submit, ssl_certfile=certificate, ssl_keyfile=key)

    return listening(port)


@pytest.fixture
def alice(kits: Path) -> SubmitterKit:
    kit = read_kit(kits / "alice")
    assert isinstance(kit, SubmitterKit)
    return kit


@pytest.fixture
def jobs(kits: Path) -> Jobs:
    kit = read_link_kit(kits / "link")
    return Jobs(kit.jobs, kit.runs)


def bouquet(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


def test_a_submitter_submits_lists_and_stops_from_another_machine(
    kits: Path, alice: SubmitterKit, jobs: Jobs
) -> None:
    given = "dataset='digits' num-clients=4 seed=7 fedprox.mu=0.5 algorithm='fedprox'"
    code, said = bouquet("run", "--link", alice.path, "-c", given, "--run-name", "a", "--detach")
    assert (code, "job a is pending" in said) == (0, True), said
    job = jobs.read("a")
    assert job is not None
    assert (job.submitter, job.keys["fedprox.mu"], job.keys["seed"]) == ("alice", 0.5, 7)
    submit(read_link_kit(kits / "link"), KEYS | {"run-name": "owners"})
    code, said = bouquet("run", "--link", alice.path, "--stop", "owners")
    assert "expected the name of a run of alice (a); got 'owners'" in said
    code, said = bouquet("run", "--link", alice.path, "--stop", "a")
    assert (code, jobs.shall_stop(job)) == (0, True), said
    for wrong, says in [
        (
            ["-c", "dataset='csv' data-path='superexec.secret'"],
            'run-config key "data-path": expected none',
        ),
        (["--run-name", "a", "--overwrite"], "--overwrite: expected it with the kit of the link itself"),
        (
            ["--run-name", "owners", "--resume"],
            "expected a free name, or with resume=true that of a run of alice",
        ),
    ]:
        assert says in bouquet("run", "--link", alice.path, *wrong)[1]
    assert {path.name for path in jobs.folder.glob("*.json")} == {"a.json", "owners.json"}


def ended(kit: LinkKit, jobs: Jobs, state: str, reason: str = "") -> Job:
    """Return a run of alice's that has ended, with results; none of them is read on the way."""
    job = submit(kit, KEYS | {"run-name": "a"}, submitter="alice")
    (kit.runs / "a" / "checkpoint").mkdir(parents=True)
    for name in ("config.json", "result.json", "model.safetensors", "checkpoint/state", "secret"):
        (kit.runs / "a" / name).write_bytes(name.encode() * 50_000)
    return jobs.update(job, state=state, runs=(11,), reason=reason)


def test_a_followed_run_is_printed_and_its_results_are_fetched(
    kits: Path, alice: SubmitterKit, jobs: Jobs, superlink: SuperLink
) -> None:
    link = read_link_kit(kits / "link")
    ended(link, jobs, FINISHED)
    superlink.logs = {11: [("\x1b[92mINFO\x1b[0m: round 1\x1b]0;title\n", 1.0)]}
    code, said = bouquet("run", "--link", alice.path, "--attach", "a")
    assert (code, "INFO: round 1" in said, "\x1b" in said) == (0, True, False), said
    assert f"Fetched to: {alice.runs / 'a'}" in said
    there = {path.name: path.read_bytes() for path in (alice.runs / "a").iterdir()}
    assert there == {
        name: (link.runs / "a" / name).read_bytes()
        for name in ("config.json", "result.json", "model.safetensors")
    }


def test_a_log_goes_on_after_the_link_was_away(
    kits: Path, alice: SubmitterKit, jobs: Jobs, superlink: SuperLink, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    ended(read_link_kit(kits / "link"), jobs, FINISHED)
    superlink.logs = {11: [("one\n", 1.0), ("two\n", 2.0)]}
    whole, cut = Calls.stream, [1, 0]  # lines before it breaks off

    def stream(calls: Calls, name: str, **fields: Any) -> Iterator[Any]:
        if not cut:
            yield from whole(calls, name, **fields)
            return
        yield from islice(whole(calls, name, **fields), cut.pop(0))
        raise LinkError("the network is away.")

    monkeypatch.setattr(Calls, "stream", stream)
    monkeypatch.setattr(timing, "RETRY_LONGEST_S", 0.001)
    remote.follow(alice, remote.find(alice, "a", "--attach"))
    away = "the network is away. The run goes on there; trying again\n"
    assert capsys.readouterr().out.startswith(f"one\n{away}{away}two\njob a is finished\n")


def test_a_failed_run_says_why(kits: Path, alice: SubmitterKit, jobs: Jobs) -> None:
    ended(read_link_kit(kits / "link"), jobs, FAILED, "too few nodes")
    with pytest.raises(BouquetError, match="job a failed: too few nodes"):
        remote.follow(alice, remote.find(alice, "a", "--attach"))


@pytest.mark.parametrize("whose", ["link", "alice"])
def test_of_a_stopped_run_the_follower_says_where_its_results_are_and_how_it_goes_on(
    kits: Path, alice: SubmitterKit, jobs: Jobs, whose: str
) -> None:
    ended(read_link_kit(kits / "link"), jobs, STOPPED, "stopped by the user")
    result = CliRunner().invoke(app, ["run", "--link", str(kits / whose), "--attach", "a"])
    assert isinstance(result.exception, exits.StoppedError)
    assert str(result.exception) == (
        f"job a: stopped by the user; its results so far: {kits / whose / 'runs' / 'a'}; "
        f"`bouquet run --link {kits / whose} --resume --run-name a` continues from the last checkpoint"
    )


def test_a_first_run_is_not_called_after_an_earlier_one_that_never_was(kits: Path) -> None:
    (kits / "link" / "rows.csv").write_text("a,b:target\n1,0\n")
    keys = (
        'dataset="csv" model="logistic" num-classes=2 data-path="rows.csv" learning-rate=0.125 '
        "local-epochs=7 batch-size=17 fraction-evaluate=0.5 num-server-rounds=12 local-test-fraction=0.25"
    )  # too long for a name, which so has a fingerprint of them
    for earlier in (False, True):
        code, said = bouquet("run", "--link", kits / "link", "-c", keys, "--detach")
        assert (code, "the name of an earlier run" in said) == (0, earlier), said
    assert len(list((kits / "link" / "jobs").glob("*.json"))) == 2


def test_the_link_is_believed_only_with_its_own_certificate(
    kits: Path, alice: SubmitterKit, tmp_path: Path
) -> None:
    """Who takes the port while the link is down is shown no token."""
    with pytest.raises(ConfigError, match=r"--attach: expected .*\(none\); got 'a'"):
        remote.find(alice, "a", "--attach")
    provision(tmp_path / "others", "127.0.0.1:9092", ["ward-1"])
    (alice.path / "ca.crt").write_bytes((tmp_path / "others" / "ca" / "ca.crt").read_bytes())
    with pytest.raises(LinkError, match="CERTIFICATE_VERIFY_FAILED"):
        remote.find(alice, "a", "--attach")


def test_the_status_is_the_links(kits: Path, alice: SubmitterKit, jobs: Jobs) -> None:
    link = read_link_kit(kits / "link")
    submit(link, KEYS | {"run-name": "a"}, submitter="alice")
    code, said = bouquet("status", alice.path)
    assert (code, "the link is not running" in said) == (69, False), said
    write_status(link, Seen(), [], jobs)
    code, said = bouquet("status", alice.path)
    assert (code, "a (by alice)" in said) == (1, True), said  # red: no SuperLink has answered


def test_a_revoked_submitter_is_told(kits: Path, alice: SubmitterKit) -> None:
    kept = kits.parent / "alice"
    alice.path.rename(kept)
    provision(kits, revoke=["alice"])
    moved = read_kit(kept)
    assert isinstance(moved, SubmitterKit)
    with pytest.raises(LinkError, match=r"answered 401: .*not valid \(any more\)"):
        remote.status(moved)


@pytest.mark.parametrize("name", ["../../.ssh/x", "/etc/x", "..", "", "a/b"])
def test_a_link_does_not_choose_where_results_are_written(name: str) -> None:
    answer = CONTROL.answer("ListRuns", run_dict={7: {"run_id": 7, "federation": f"@alice/{name}"}})
    with pytest.raises(BouquetError, match="expected runs named as folders from the link; got"):
        remote._runs(lambda call, **which: answer, run_id=7)  # type: ignore[arg-type]
