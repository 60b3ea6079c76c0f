"""A request that waits for the first engine of its service, and the client that waits with it.

Nothing is known of the model yet, so nothing is tokenised. A stream that waits for long gets its
200 and comments; after that an error is an event. A client that leaves frees the place at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from octavo.gateway.api.body import ClientGoneError, Receive, Send, left
from octavo.gateway.api.events import HOLD_S, KEEP_ALIVE
from octavo.gateway.api.headers import Headers, Scope, read_timeout_ms
from octavo.gateway.api.parameters import Endpoint
from octavo.gateway.api.schema import RawChat, RawCompletion, RawGeneration, convert
from octavo.gateway.catalogue import DEFAULT_RETRY_MS
from octavo.gateway.fleet import Fleet
from octavo.gateway.time_bounds import TimeBounds
from octavo.v1 import engine_pb2
from octavo.v1.errors import DRAINING, OctavoError

_SHAPES: Final[dict[Endpoint, type[RawGeneration]]] = {
    "chat": RawChat,
    "completions": RawCompletion,
}


class Waiting:
    """Where requests wait.

    Args:
        fleet: the engines.
        heartbeat_s: between two comments of a stream.
    """

    def __init__(self, fleet: Fleet, *, heartbeat_s: float) -> None:
        self._fleet = fleet
        self._heartbeat_s = heartbeat_s

    async def engine(
        self,
        endpoint: Endpoint,
        honoured: dict[str, Any],
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        headers: Headers,
    ) -> float:
        """Notes which service a request wants and waits if it has no engine; returns how long.

        Args:
            endpoint: what was called.
            honoured: the body.
            scope: the request's headers.
            receive: tells when the client leaves.
            send: takes the beginning of a stream.
            headers: of that stream.

        Raises:
            ClientGoneError: it has left.
            OctavoError: the body has no shape, too many wait, or this one must not any longer.
        """
        fleet, name = self._fleet, honoured.get("model", "")
        service = fleet.catalogue.service_of(name) if isinstance(name, str) else ""
        if not service:
            return 0.0
        fleet.demand.arrived(service)
        if not fleet.holds(service):
            return 0.0
        loop = asyncio.get_running_loop()
        began, body = loop.time(), convert(honoured, _SHAPES[endpoint])
        bounds = TimeBounds(_patience(body, scope), began)
        still = partial(fleet.holds, service)
        waiting = fleet.demand.hold(service, still, until=bounds.queue_ends_at)
        company = _Company(send, headers, heartbeat_s=self._heartbeat_s) if body.stream else None
        await _wait(waiting, receive, company)
        if fleet.draining:
            raise OctavoError(DRAINING, retry_after_ms=DEFAULT_RETRY_MS)
        bounds.check(loop.time(), started=False)
        return loop.time() - began


def _patience(body: RawGeneration, scope: Scope) -> engine_pb2.GenerateRequest:
    """Returns how long a request may take, in the engine's words."""
    remaining_ms = 0 if body.stream else read_timeout_ms(scope)
    return engine_pb2.GenerateRequest(max_queue_ms=body.max_queue_ms, remaining_ms=remaining_ms)


class _Company:
    """What keeps the client of a stream patient."""

    def __init__(self, send: Send, headers: Headers, *, heartbeat_s: float) -> None:
        self.pause_s = HOLD_S
        self._send = send
        self._headers = headers
        self._heartbeat_s = heartbeat_s
        self._begun = False

    async def comment(self) -> None:
        if not self._begun:
            self._begun, self.pause_s = True, self._heartbeat_s
            head = {"type": "http.response.start", "status": 200, "headers": self._headers}
            await self._send(head)
        await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})


async def _wait(waiting: Awaitable[None], receive: Receive, company: _Company | None) -> None:
    """Waits until it is done or the client has left."""
    turn = asyncio.ensure_future(waiting)
    gone = asyncio.create_task(left(receive))
    try:
        while not turn.done():
            if gone.done():
                raise ClientGoneError
            pause_s = None if company is None else company.pause_s
            done, _ = await asyncio.wait(
                (turn, gone), timeout=pause_s, return_when="FIRST_COMPLETED"
            )
            if not done and company is not None:
                await company.comment()
        turn.result()
    finally:
        turn.cancel()
        gone.cancel()
        await asyncio.gather(turn, gone, return_exceptions=True)
