"""The Runtime API's calls of a round, without Flower's layers around them.

Flower's application takes such a call through five middlewares and as many threads; it then costs ten times
what the handler itself costs, and a round has dozens of them. Here a call is read, its token is checked and
its handler called in one thread. Errors become the answers that Flower makes of them. The version of the
caller is not checked again: it was when it acquired its task.

Two calls are our own. `ANSWERED`: ``?hold=SECONDS`` with ids of messages, answered with those ids
whose reply, or an error in its place, is there to be pulled. It marks nothing as delivered. It is a long
poll, which waits in the event loop and needs no thread. `PARTS` with ids of objects gives the contents of the
first few megabytes of them, packed; Flower's grid asks for one after the other.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from flwr.supercore.error import ApiErrorCode, FlowerError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server_app.deploy.calls.inbox import Question
from server_app.deploy.calls.protocol import TASK_TOKEN_HEADER
from task import timing
from task.flower.grid import ANSWERED, PARTS
from task.flower.services import FLEET, Protobuf, runtime_message
from task.wire.parts import pack

if TYPE_CHECKING:
    from server_app.deploy.flower.delivery import Delivery

THREADS = 32
PARTS_BYTES = 8 * 1024**2  # given at once
HELD_QUESTIONS = 64  # at a time; further ones are answered at once
MESSAGE_IDS = runtime_message("PullAppMessagesRequest")
CONFIRM = "confirm_message_received", FLEET.request_type("ConfirmMessageReceived")
CALLS: dict[str, tuple[str, Any]] = {
    "/v1/runtime/push-messages": ("push_messages", runtime_message("PushAppMessagesRequest")),
    "/v1/runtime/push-object": ("push_object", FLEET.request_type("PushObject")),
    "/v1/runtime/pull-messages": ("pull_messages", MESSAGE_IDS),
    "/v1/runtime/pull-object": ("pull_object", FLEET.request_type("PullObject")),
    "/v1/runtime/confirm-message-received": CONFIRM,
    "/v1/runtime/get-nodes": ("get_nodes", runtime_message("GetNodesRequest")),
}


class RuntimeCalls:
    """Serves these calls.

    Args:
        delivery: Returns who knows, once the SuperLink has started.
    """

    paths = frozenset((*CALLS, ANSWERED, PARTS))

    def __init__(self, delivery: Callable[[], "Delivery"]) -> None:
        # Here, as a SuperLink without these calls imports this module, too.
        from flwr.supercore.dependencies.task import authenticate_task
        from flwr.supercore.error import http_error_translator
        from flwr.superlink.servicer.runtime import runtime_handlers

        self._translated, self._handlers = http_error_translator, runtime_handlers
        self._authenticate = authenticate_task
        self._delivery = delivery
        self._held = 0
        self._threads = ThreadPoolExecutor(THREADS, "runtime")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        response = await self._translated(Request(scope, receive), self._answer)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        body, path = await request.body(), request.scope["path"]
        if path == ANSWERED:
            answer = (await self._which(request, body)).SerializeToString()
        elif path == PARTS:
            answer = await self._in_thread(self._parts, request, body)
        else:
            answer = await self._in_thread(self._handle, request, body, *CALLS[path])
        return Response(answer, media_type="application/protobuf")

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def _task(self, request: Request) -> Any:
        return self._authenticate(request, request.headers.get(TASK_TOKEN_HEADER), self._delivery().state)

    def _handle(self, request: Request, body: bytes, name: str, kind: Any) -> bytes:
        task = self._task(request)
        answer = getattr(self._handlers, name)(_parse(kind, body), self._delivery().state, task)
        return bytes(answer.SerializeToString())

    def _parts(self, request: Request, body: bytes) -> bytes:
        self._task(request)
        names = _parse(MESSAGE_IDS, body).message_ids
        return pack(self._delivery().contents(names, PARTS_BYTES).items())

    async def _which(self, request: Request, body: bytes) -> Protobuf:
        task = await self._in_thread(self._task, request)
        asked = _parse(MESSAGE_IDS, body)
        try:
            hold_s = float(request.query_params.get("hold", "0"))
        except ValueError:
            hold_s = 0.0
        found = await self.which(frozenset(asked.message_ids), task.run_id, min(hold_s, timing.ANSWERED_S))
        return MESSAGE_IDS(message_ids=sorted(found))

    async def which(self, wanted: frozenset[str], run: int, hold_s: float) -> set[str]:
        """Return which messages are answered; if none is, once one is or after the time."""
        delivery = self._delivery()
        question = Question(wanted, asyncio.get_running_loop())
        with delivery.arrivals.asking(question):
            found: set[str] = await self._in_thread(delivery.ready, wanted, run)
            if found or self._held >= HELD_QUESTIONS:
                return found
            self._held += 1
            try:
                await asyncio.wait_for(question.rung.wait(), hold_s)
            except TimeoutError:
                return set()
            finally:
                self._held -= 1
        return question.found or await self._in_thread(delivery.ready, wanted, run)


def _parse(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except Exception as err:  # protobuf's own
        raise FlowerError(
            ApiErrorCode.INVALID_PROTOBUF_PAYLOAD, f"expected {kind.__name__}; got {err}"
        ) from err
