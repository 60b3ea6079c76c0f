"""Sends the answer of a plan: in one piece, or as a stream that never ends cleanly if it is lost.

The 200 of a stream goes out with its first delta, or after HOLD_S of waiting, because a real
error is worth more than an early header. After that an error is one event, without DONE, and the
body is left incomplete: the server closes the connection without the last chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from octavo.gateway.api.body import Receive, Send
from octavo.gateway.api.events import HOLD_S, KEEP_ALIVE, Events
from octavo.gateway.api.headers import (
    REPLAYED,
    STREAM,
    Headers,
    cached_header,
    id_headers,
    ignored_header,
    route_header,
    timing_header,
)
from octavo.gateway.api.plan import Plan
from octavo.gateway.api.running import Open, Running
from octavo.gateway.api.tally import Tally
from octavo.gateway.api.whole import whole_answer
from octavo.gateway.time_bounds import TimeBounds
from octavo.v1.errors import ENGINE_FAILURE, OctavoError

_LONG_S: Final = 3600.0


async def answer(
    plan: Plan,
    open: Open,
    receive: Receive,
    send: Send,
    *,
    bounds: TimeBounds,
    heartbeat_s: float,
    begun: bool,
    on_running: Callable[[Running], None],
) -> None:
    """Runs the plan and sends its answer; sends nothing to a client that has left.

    Args:
        plan: what to do.
        open: opens the generation of a prompt.
        receive: tells when the client leaves.
        send: takes the answer.
        bounds: of this client's request, told the loop's time.
        heartbeat_s: silence after which a stream gets a comment.
        begun: the stream has had its head, and comments.
        on_running: takes note of what holds the answer's buffers.

    Raises:
        OctavoError: nothing was sent yet, so that the caller answers with the error.
    """
    async with Running(plan, open, receive, bounds=bounds) as running:
        on_running(running)
        if plan.stream:
            await _stream(plan, running, send, heartbeat_s=heartbeat_s, begun=begun)
        else:
            await _whole(plan, running, send)


async def _whole(plan: Plan, running: Running, send: Send) -> None:
    tally = Tally(plan)
    while not running.ended:
        for prompt, delta in await running.take(_LONG_S):
            tally.take(prompt, delta)
        if running.gone:
            return
        if running.error is not None:
            raise running.error
    for prompt, delta in await running.take(0):
        tally.take(prompt, delta)
    if running.error is not None:
        raise running.error
    if not tally.complete:
        raise OctavoError(ENGINE_FAILURE)
    metrics = tally.metrics()
    body = msgspec.json.encode(whole_answer(plan, tally, metrics))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        cached_header(tally.cached_tokens),
        timing_header(
            {
                "queue": metrics["queue_ms"],
                "prefill": metrics["prefill_ms"],
                "decode": metrics["decode_ms"],
            }
        ),
        *_explaining(plan, running),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(
    plan: Plan, running: Running, send: Send, *, heartbeat_s: float, begun: bool
) -> None:
    loop = asyncio.get_running_loop()
    tally = Tally(plan)
    events = Events(plan, tally)
    accepted = loop.time()
    last_sent: float | None = accepted if begun else None
    while True:
        due = accepted + HOLD_S if last_sent is None else last_sent + heartbeat_s
        deltas = await running.take(max(0.0, due - loop.time()))
        if running.gone:
            return
        # Taken together: while something is sent, more may arrive.
        error, ended = running.error, running.ended
        body = b"".join([events.of(tally.take(prompt, delta), delta) for prompt, delta in deltas])
        if error is None and ended and not tally.complete:
            error = OctavoError(ENGINE_FAILURE)
        if last_sent is None:
            if error is not None:
                raise error
            waited_ms = (loop.time() - accepted) * 1000
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": _stream_headers(plan, running, tally, waited_ms=waited_ms),
                }
            )
            last_sent = accepted
        if error is not None:
            body += events.error(error)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            return
        if ended:
            await send({"type": "http.response.body", "body": body + events.last()})
            return
        # Worded as `due` is: a difference is rounded otherwise, and could wait for no time at all.
        if not body and loop.time() >= last_sent + heartbeat_s:
            body = KEEP_ALIVE
        if body:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            last_sent = loop.time()


def _explaining(plan: Plan, running: Running) -> Headers:
    headers = id_headers(plan.context.id)
    first = running.generations[0]
    if plan.context.replayed:
        headers.append(REPLAYED)
    if first is not None and first.route is not None:
        headers.append(route_header(first.route))
    if plan.context.ignored:
        headers.append(ignored_header(plan.context.ignored))
    if plan.clamped_to is not None:
        headers.append((b"x-octavo-clamped", b"max_tokens=%d" % plan.clamped_to))
    return headers


def _stream_headers(plan: Plan, running: Running, tally: Tally, *, waited_ms: float) -> Headers:
    return [
        *([cached_header(tally.cached_tokens)] if tally.knows_cached else []),
        *STREAM,
        timing_header({"first": waited_ms}),
        *_explaining(plan, running),
    ]
