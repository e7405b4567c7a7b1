"""Which of its messages are answered: a ServerApp's question that the link holds until one is.

``POST /v1/runtime/bouquet-answered?hold=SECONDS`` with a task's token and ids of messages, answered with
those ids whose reply, or an error in its place, is there to be pulled. It marks nothing as delivered.
Flower's routes are synchronous and share forty threads; this one waits in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import TASK_TOKEN_HEADER
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from server_app.deploy.flower.arrivals import Question
from server_app.deploy.flower.delivery import Delivery
from task import timing

MOST_BYTES = 16 * 1024**2  # of a question: ids of 200,000 messages
HELD_QUESTIONS = 64  # at a time; further ones are answered at once


class Answered:
    """Serves the question.

    Args:
        delivery: Returns who knows, once the SuperLink has started.
    """

    def __init__(self, delivery: Callable[[], Delivery]) -> None:
        self._delivery = delivery
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one question."""
        with contextlib.suppress(ClientDisconnect):
            response = await self._answer(Request(scope, receive))
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        tokens = request.headers.getlist(TASK_TOKEN_HEADER)
        state = self._delivery().state
        task: Any = await run_in_threadpool(state.get_task_by_token, tokens[0]) if len(tokens) == 1 else None
        if task is None:
            return PlainTextResponse("expected the token of a task that runs; got none", 401)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                return PlainTextResponse(f"expected at most {MOST_BYTES} bytes; got more", 413)
        try:
            asked = PullAppMessagesRequest.FromString(bytes(body))
            hold_s = min(max(float(request.query_params.get("hold", "0")), 0.0), timing.ANSWERED_S)
        except Exception as err:  # protobuf's own error, or that of a number
            return PlainTextResponse(f"expected ids of messages, and hold=SECONDS; got {err}", 400)
        found = await self.which(frozenset(asked.message_ids), task.run_id, hold_s)
        content = PullAppMessagesRequest(message_ids=sorted(found)).SerializeToString()
        return Response(content, media_type="application/protobuf")

    async def which(self, wanted: frozenset[str], run: int, hold_s: float) -> set[str]:
        """Return which messages are answered; if none is, once one is or after the time."""
        delivery = self._delivery()
        question = Question(wanted, asyncio.get_running_loop())
        with delivery.arrivals.asking(question):
            found = await run_in_threadpool(delivery.ready, wanted, run)
            if found or self._held >= HELD_QUESTIONS:
                return found
            self._held += 1
            try:
                await asyncio.wait_for(question.rung.wait(), hold_s)
            except TimeoutError:
                return set()
            finally:
                self._held -= 1
        return question.found or await run_in_threadpool(delivery.ready, wanted, run)
