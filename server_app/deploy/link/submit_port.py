"""The link's port for Flower's own commands and for submitters: ``python -m ...link.submit_port KIT``.

It is off unless the link's ``kit.toml`` has the key ``submit``, and speaks TLS with the link's certificate.
Who calls shows a token, which `bouquet connect` has put where Flower's commands look for one. A port of
loopback that adds the proof to whatever comes would be weaker: every account of the machine reaches it, and
whoever binds it while the link is down is believed. Here a stranger has no token, and who holds the port
without the link's key is shown none.

Only `CALLS` are served, of Flower's Control API, and two of our own, `STATUS` and `RESULTS`. Nothing that a
caller writes reaches Flower's API, except the time from which a log is read. A run that is started is a job
as others are (server_app/deploy/link/submission.py), and its number is the job's, whatever Flower's runs of
it are. A submitter sees, follows and stops its own runs only. What comes is bounded before it is kept:
headers and connections as in server_app/deploy/calls/fleet_relay.py, a body as `CALLS` says; nothing of a
body is read before the token is checked.
"""

import asyncio
import json
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from server_app.deploy.calls.control_calls import (
    STREAM,
    Frames,
    framed,
    read_request,
)
from server_app.deploy.calls.fleet_relay import (
    Address,
    AnswerError,
    main,
    read_body,
    serve_link,
)
from server_app.deploy.calls.fleet_transport import TYPE
from server_app.deploy.host.app_integrity import own_app
from server_app.deploy.host.modules import module_command
from server_app.deploy.host.processes import how_it_ended, say
from server_app.deploy.kits.kit import OWNER, LinkKit, proof
from server_app.deploy.link.follow import stop
from server_app.deploy.link.jobs import FAILED, FINISHED, QUEUED, RUNNING, STOPPED, Job, Jobs
from server_app.deploy.link.status import read_status
from server_app.deploy.link.submission import REFUSED
from server_app.deploy.link.submitters import caller_of, may_see
from server_app.results.folder import RunFolder
from task import timing
from task.errors import BouquetError
from task.flower.services import CONTROL

SMALL = 16 * 1024  # bytes of a request
CALLS = {  # of the Control API, and the bytes that each may have
    "StartRun": 12 * 1024**2,  # Flower takes a bundle of 10 MB
    "StopRun": SMALL,
    "ListRuns": SMALL,
    "ListNodes": SMALL,
    "StreamLogs": SMALL,
}
STATUS = "/v1/bouquet/status"
RESULTS = "/v1/bouquet/results/"  # and a job's number, and the name of a file
FILES = ("config.json", "rounds.jsonl", "clients.jsonl", "nodes.json", "model.safetensors", "report.html",
         "result.json")  # fmt: skip
STREAMS, STREAMS_OF_ONE = 16, 4  # logs that submitters follow: each takes the SuperLink a thread
LISTED = 20  # runs, unless the caller says how many
UNKNOWN = "expected the number of a run of yours, as `flwr ls` lists them; got {}"
STATES = {
    QUEUED: "pending",
    RUNNING: "running",
    FINISHED: "finished",
    FAILED: "finished",
    STOPPED: "finished",
}
HOW = {FINISHED: "completed", FAILED: "failed", STOPPED: "stopped"}


class SubmitPort:
    """Serves the calls.

    Args:
        kit: The link's.
        superlink: A client of its Control API.
    """

    def __init__(self, kit: LinkKit, superlink: httpx.AsyncClient) -> None:
        self._kit, self._superlink = kit, superlink
        self._jobs = Jobs(kit.jobs, kit.runs)
        self._starting = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by caller: a slow one delays itself
        self._streams: Counter[str] = Counter()  # by caller
        self._refused, self._said = 0, -timing.SAME_LINE_S
        self.serving: set[Address] = set()
        self._calls = {
            CONTROL.http_path("StartRun"): self._start,
            CONTROL.http_path("StopRun"): self._stop,
            CONTROL.http_path("ListRuns"): self._list,
            CONTROL.http_path("ListNodes"): self._nodes,
            CONTROL.http_path("StreamLogs"): self._logs,
        }
        self._most = {CONTROL.http_path(name): most for name, most in CALLS.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        client = tuple(scope["client"])
        try:
            caller = self._caller(scope)
            self.serving.add(client)
            answer = await self._serve(caller, scope, receive)
        except AnswerError as err:
            answer = err.answer
        except BouquetError as err:
            answer = JSONResponse({"detail": str(err)}, 400)
        try:
            await answer(scope, receive, send)
        finally:
            self.serving.discard(client)

    def _caller(self, scope: Scope) -> str:
        caller = caller_of(self._kit, _token(scope))
        if not caller:
            self._say_refused(scope["client"][0])
            # Without "WWW-Authenticate: Bearer", on which Flower's commands would try to log in again.
            raise AnswerError(
                401,
                "expected the token of the link's owner or of a submitter; got none, or one that is not "
                "valid (any more). Write it for Flower's commands: bouquet connect KIT",
            )
        return caller

    def _say_refused(self, address: str) -> None:
        """Log calls without a valid token: one line for many, so that they do not push others out."""
        self._refused += 1
        if time.monotonic() - self._said >= timing.SAME_LINE_S:
            say(f"refused, for want of a valid token: {self._refused} calls, the last from {address}")
            self._said, self._refused = time.monotonic(), 0

    async def _serve(self, caller: str, scope: Scope, receive: Receive) -> Response:
        path, method = scope["path"], scope["method"]
        if method == "GET" and path == STATUS:
            return JSONResponse(await asyncio.to_thread(self._status, caller))
        if method == "GET" and path.startswith(RESULTS):
            return await asyncio.to_thread(self._result, caller, path.removeprefix(RESULTS))
        if method != "POST" or path not in self._calls:
            raise AnswerError(
                403, f"expected one of {', '.join(CALLS)}; got another call, which is closed here"
            )
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        size = int(lengths[0]) if lengths else -1  # h11 has checked that it is a number
        if not 0 <= size <= self._most[path]:
            raise AnswerError(413, f"expected a request of at most {self._most[path]} bytes; got {size}")
        answer = await self._calls[path](caller, receive, size)
        if isinstance(answer, StreamingResponse):
            answer.body_iterator = self._until_revoked(_token(scope), aiter(answer.body_iterator))
        return answer

    async def _until_revoked(self, token: str, frames: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield what a caller follows as long as its token is valid."""
        coming = asyncio.ensure_future(anext(frames, None))
        try:
            while await asyncio.to_thread(caller_of, self._kit, token):
                if not (await asyncio.wait({coming}, timeout=timing.NODES_LOOK_S))[0]:
                    continue
                if (frame := coming.result()) is None:
                    return
                yield frame
                coming = asyncio.ensure_future(anext(frames, None))
            line = CONTROL.answer("StreamLogs", log_output="the kit of who follows this log was revoked\n")
            yield framed(line.SerializeToString())
        finally:
            coming.cancel()

    async def _start(self, caller: str, receive: Receive, size: int) -> Response:
        """Queue a run, by a process that reads what was sent."""
        async with self._starting[caller]:
            body = await read_body(receive, size)
            command = module_command("server_app.deploy.link.submission", str(self._kit.path), caller)
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
            try:
                async with asyncio.timeout(timing.SUBMISSION_S):
                    out, _ = await process.communicate(body)
            except TimeoutError:
                raise AnswerError(503, f"the run was not checked in {timing.SUBMISSION_S:g} s") from None
            finally:
                if process.returncode is None:  # such as when the caller is gone
                    process.kill()
                    await process.wait()
        if process.returncode == REFUSED:
            say(f"refused a run of {caller}: {out.decode().strip()}")
            raise AnswerError(400, out.decode().strip())
        if process.returncode:
            raise AnswerError(500, f"the process that reads the run {how_it_ended(process.returncode or 0)}")
        made = json.loads(out)
        federation = _federation(caller, made["name"])
        return _answer("StartRun", run_id=made["number"], federation=federation)

    async def _stop(self, caller: str, receive: Receive, size: int) -> Response:
        request = read_request("StopRun", await read_body(receive, size))
        job = await asyncio.to_thread(self._job, caller, request.run_id)
        if job.ended:
            raise AnswerError(400, f"expected a run that is queued or running; {job.name} has {job.state}")
        await asyncio.to_thread(stop, self._kit, job.name, caller)
        return _answer("StopRun", success=True)

    async def _list(self, caller: str, receive: Receive, size: int) -> Response:
        request = read_request("ListRuns", await read_body(receive, size))
        if request.HasField("run_id"):
            jobs = [await asyncio.to_thread(self._job, caller, request.run_id)]
        else:
            most = request.limit if request.HasField("limit") else LISTED
            own = [job for job in await asyncio.to_thread(self._jobs.all) if may_see(caller, job)]
            jobs = own[::-1][:most]
        rows = {job.number: await asyncio.to_thread(self._row, job) for job in jobs}
        return _answer("ListRuns", run_dict=rows, now=_time(time.time()))

    async def _nodes(self, caller: str, receive: Receive, size: int) -> Response:
        read_request("ListNodes", await read_body(receive, size))
        try:
            got = await self._superlink.post(CONTROL.http_path("ListNodes"), content=b"")
            got.raise_for_status()
        except httpx.HTTPError as err:
            raise AnswerError(
                503, f"the SuperLink does not answer: {type(err).__name__}. Try again"
            ) from None
        nodes = CONTROL.answer_type("ListNodes").FromString(got.content)
        for node in nodes.nodes_info:
            node.owner_name = node.name  # what `flwr supernode list` shows; all are of one account
        return Response(nodes.SerializeToString(), media_type=TYPE)

    async def _logs(self, caller: str, receive: Receive, size: int) -> Response:
        request = read_request("StreamLogs", await read_body(receive, size))
        job = await asyncio.to_thread(self._job, caller, request.run_id)
        others = self._streams.total() - self._streams[OWNER]
        if self._streams[caller] >= STREAMS_OF_ONE or (caller != OWNER and others >= STREAMS):
            raise AnswerError(
                503,
                f"expected at most {STREAMS_OF_ONE} logs that {caller} follows, and {STREAMS} of all "
                "submitters; got another. End one",
            )
        return StreamingResponse(self._followed(caller, job, request.after_timestamp), media_type=STREAM)

    async def _followed(self, caller: str, job: Job, after: float) -> AsyncIterator[bytes]:
        """Yield the log of a job's attempts until it has ended."""
        self._streams[caller] += 1
        try:
            said, shown = "", 0
            while (now := await asyncio.to_thread(self._jobs.read, job.name)) and now.id == job.id:
                for run in now.runs[shown:]:
                    async for answer in self._log(run, after):
                        after = max(after, answer.latest_timestamp)
                        yield framed(answer.SerializeToString())
                    shown += 1
                text = f"job {now.name} is {now.state}" + (f": {now.reason}" if now.reason else "")
                if text != said and (now.ended or not now.runs):
                    said = text
                    line = CONTROL.answer("StreamLogs", log_output=f"{text}\n", latest_timestamp=after)
                    yield framed(line.SerializeToString())
                if now.ended and shown == len(now.runs):
                    return
                await asyncio.sleep(timing.FOLLOW_S)
        finally:
            self._streams[caller] -= 1

    async def _log(self, run: int, after: float) -> AsyncIterator[Any]:
        """Yield the log of one of Flower's runs until it has ended; wait for a SuperLink that restarts."""
        while True:
            content = CONTROL.request("StreamLogs", run_id=run, after_timestamp=after).SerializeToString()
            frames = Frames()
            try:
                async with self._superlink.stream(
                    "POST", CONTROL.http_path("StreamLogs"), content=content, headers={"accept": STREAM}
                ) as got:
                    if got.is_client_error:
                        return  # it does not know the run
                    got.raise_for_status()
                    async for chunk in got.aiter_bytes():
                        for frame in frames.read(chunk):
                            answer = CONTROL.answer_type("StreamLogs").FromString(frame)
                            after = max(after, answer.latest_timestamp)
                            yield answer
                return
            except httpx.HTTPError:
                await asyncio.sleep(timing.RETRY_LONGEST_S)

    def _job(self, caller: str, number: int) -> Job:
        """Return a job that the caller may see."""
        for job in self._jobs.all():
            if job.number == number and may_see(caller, job):
                return job
        raise AnswerError(404, UNKNOWN.format(number))

    def _row(self, job: Job) -> dict[str, Any]:
        """Return a job as Flower describes a run."""
        app, begun = own_app(), ""
        with suppress(BouquetError):  # a damaged file
            begun = str(RunFolder(self._kit.runs / job.name).config().get("started", "")) if job.runs else ""
        return {
            "run_id": job.number,
            "fab_id": "bouquet/bouquet",
            "fab_version": app.version,
            "fab_hash": app.code,
            "pending_at": _time(job.created),
            "starting_at": begun,
            "running_at": begun,
            "finished_at": _time(job.updated) if job.ended else "",
            "status": {
                "status": STATES[job.state],
                "sub_status": HOW.get(job.state, ""),
                "details": job.reason,
            },
            "federation": _federation(job.submitter, job.name),
        }

    def _status(self, caller: str) -> dict[str, Any]:
        """Return the link's status, with the runs that the caller may see."""
        found = read_status(self._kit)
        own = {job.name for job in self._jobs.all() if may_see(caller, job)}
        return found | {"processes": [], "runs": [run for run in found["runs"] if run["name"] in own],
                        "warnings": found["warnings"] if caller == OWNER else []}  # fmt: skip

    def _result(self, caller: str, place: str) -> Response:
        """Return a file of a job's results."""
        number, _, name = place.partition("/")
        job = self._job(caller, int(number) if number.isdecimal() and len(number) < 20 else -1)
        path: Path = self._kit.runs / job.name / name
        if name not in FILES or not path.is_file():
            raise AnswerError(404, f"expected one of {', '.join(FILES)} that the run has; got another")
        return FileResponse(path)


def _token(scope: Scope) -> str:
    """Return the token that a call shows, "" if it shows none."""
    shown = [value for name, value in scope["headers"] if name == b"authorization"]
    kind, _, token = shown[0].decode("latin-1").partition(" ") if len(shown) == 1 else ("", "", "")
    return token if kind == "Bearer" else ""


def _answer(name: str, **fields: Any) -> Response:
    return Response(CONTROL.answer(name, **fields).SerializeToString(), media_type=TYPE)


def _federation(submitter: str, name: str) -> str:
    """Return what Flower's commands show as the federation: whose run it is, and its name."""
    return f"@{submitter}/{name}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


async def run(kit: LinkKit) -> None:
    """Serve until a signal ends it."""
    token = proof(kit.secret.read_bytes())
    async with httpx.AsyncClient(
        base_url=f"https://{kit.control}",
        verify=ssl.create_default_context(cafile=str(kit.ca_certificate)),
        headers={"authorization": f"Bearer {token}", "content-type": TYPE, "accept": TYPE},
        timeout=httpx.Timeout(timing.CONTROL_S, read=None, pool=None),
        trust_env=False,
    ) as superlink:
        await serve_link(SubmitPort(kit, superlink), kit, kit.submit)


if __name__ == "__main__":
    main(run)
