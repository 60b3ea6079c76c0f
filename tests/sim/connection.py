"""A client's connection to a gateway: ASGI on one side, the client's try on the other.

What the server sends is in the client's hands at once, unless the client does not read; then the
server waits as behind a full socket.
"""

from __future__ import annotations

import asyncio
import json

from tests.sim.history import History, Try

from octavo.gateway.api.body import Message
from octavo.gateway.api.headers import Scope

SOCKET_BYTES = 512
"""What the server may have sent beyond what the client has read."""


class Connection:
    """One HTTP request on its way."""

    def __init__(self, attempt: Try, history: History) -> None:
        self.attempt = attempt
        self.over = asyncio.Event()
        self.pieces = 0
        self._history = history
        self._gone = asyncio.Event()
        self._asked = False
        self._unread = 0
        self._clock = asyncio.get_running_loop().time

    def scope(self) -> Scope:
        """The ASGI scope."""
        spec = self.attempt.spec
        headers = [(b"host", b"localhost"), (b"x-request-id", self.attempt.label.encode())]
        if spec.timeout_s:
            headers.append((b"x-stainless-read-timeout", str(spec.timeout_s).encode()))
        if spec.key:
            headers.append((b"idempotency-key", spec.key.encode()))
        path = "/v1/chat/completions" if spec.chat else "/v1/completions"
        return {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": headers,
        }

    async def receive(self) -> Message:
        """The body, then the client's leaving."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": json.dumps(self.attempt.spec.body()).encode()}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Gives the client something, or waits until it reads again, which means: leaves."""
        attempt = self.attempt
        if attempt.end:
            return
        if message["type"] == "http.response.start":
            attempt.status = message["status"]
            attempt.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        body = message.get("body", b"")
        attempt.body += body
        self.pieces += 1
        if not message.get("more_body"):
            self.end("complete")
            return
        stall = attempt.spec.stall_after
        if stall is not None and self.pieces > stall:
            self._unread += len(body)
            if self._unread > SOCKET_BYTES:
                self._history.count("client.stalled")
                await self._gone.wait()

    def end(self, how: str) -> None:
        """Ends the try; the first end counts."""
        attempt = self.attempt
        if not attempt.end:
            attempt.end, attempt.ended = how, self._clock()
            spec = attempt.spec
            self._history.trace(
                "client", spec.name, how, attempt.status, attempt.id, bytes(attempt.body)
            )
            self._gone.set()
            self.over.set()
