"""Calls of an ASGI application, as a port would make them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from socket import socket
from typing import Any

import httpx
from starlette.types import ASGIApp
from uvicorn import Server


class Caller:
    """Calls an application as the port would, without the port."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Return the answer to a request of a client that is not asynchronous."""
        headers = list(request.headers.raw)
        return self.call(request.method, request.url.raw_path.decode(), headers, request.content)

    def call(
        self,
        method: str,
        path: str,
        headers: Mapping[Any, Any] | Sequence[tuple[Any, Any]] = (),
        content: bytes = b"",
    ) -> httpx.Response:
        """Return the answer to a call."""

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.request(method, f"https://link{path}", headers=headers, content=content)

        return asyncio.run(go())

    def post(self, path: str, headers: Any = (), content: bytes = b"") -> httpx.Response:
        """Return the answer to a POST."""
        return self.call("POST", path, headers, content)

    def get(self, url: str) -> httpx.Response:
        """Return the answer to a GET."""
        return self.send(httpx.Request("GET", url)) if "://" in url else self.call("GET", url)


@contextmanager
def listening(port: Callable[[], AbstractAsyncContextManager[tuple[Server, socket]]]) -> Iterator[socket]:
    """Serve a port in a thread while the block lasts; give the socket that it listens on."""
    loop, begun, over = asyncio.new_event_loop(), threading.Event(), threading.Event()
    found: list[socket] = []

    async def main() -> None:
        async with port() as (server, listener):
            serving = asyncio.create_task(server.serve([listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            found.append(listener)
            begun.set()
            await asyncio.to_thread(over.wait)
            server.should_exit = True
            await serving

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert begun.wait(20)
    try:
        yield found[0]
    finally:
        over.set()
        thread.join(20)
        loop.close()
