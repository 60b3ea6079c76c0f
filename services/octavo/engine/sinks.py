"""Where the answers of the engine go: a gateway's session, or one direct caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from octavo.engine.stepper import Bundle
from octavo.v1 import engine_pb2
from octavo.v1.errors import OctavoError

log = structlog.get_logger(__name__)

MAX_PENDING_BYTES: Final = 3 * 1024 * 1024
"""What a gateway may leave unread; below the 4 MB that gRPC takes in a message."""


class Sink(Protocol):
    """Whoever submitted a request; called on the loop."""

    def accepted(self, proto: engine_pb2.GenerateRequest) -> None:
        """The request is in the queue."""

    def refused(self, proto: engine_pb2.GenerateRequest, error: OctavoError) -> None:
        """The request was never executed."""

    def delta(self, delta: engine_pb2.Delta) -> None:
        """A step added something."""

    def flush(self, bundle: Bundle) -> None:
        """The bundle is complete."""


class SessionSink:
    """What a gateway has not read yet, merged into one message."""

    def __init__(self, epoch: int, on_slow: Callable[[], None]) -> None:
        self._epoch = epoch
        self._on_slow = on_slow
        self._pending = engine_pb2.SessionUpdate(epoch=epoch)
        self.pending_bytes = 0
        self._news = asyncio.Event()
        self._closed = False

    def accepted(self, proto: engine_pb2.GenerateRequest) -> None:
        """Notes an accepted attempt."""
        ref = engine_pb2.AttemptRef(request_id=proto.request_id, attempt=proto.attempt)
        if self._has_room(ref.ByteSize()):
            self._pending.accepted.add(attempt_ref=ref)

    def refused(self, proto: engine_pb2.GenerateRequest, error: OctavoError) -> None:
        """Notes a refused attempt."""
        ref = engine_pb2.AttemptRef(request_id=proto.request_id, attempt=proto.attempt)
        refused = engine_pb2.Refused(attempt_ref=ref, error=error.to_proto())
        if self._has_room(refused.ByteSize()):
            self._pending.refused.append(refused)

    def delta(self, delta: engine_pb2.Delta) -> None:
        """Notes new tokens."""
        if self._has_room(delta.ByteSize()):
            self._pending.deltas.append(delta)

    def _has_room(self, size: int) -> bool:
        """Counts bytes to be read; a gateway that leaves too many unread loses its session.

        The transport may hold the writer up for as long as the gateway does not read, so the
        session's requests are ended here and now.
        """
        if self._closed:
            return False
        self.pending_bytes += size
        if self.pending_bytes <= MAX_PENDING_BYTES:
            return True
        log.warning("slow_consumer", pending_bytes=self.pending_bytes)
        self.close()
        self._on_slow()
        return False

    def flush(self, bundle: Bundle) -> None:
        """Completes the message; an empty one is a heartbeat."""
        self._pending.step = bundle.step
        self._pending.oldest_runnable_ms = bundle.oldest_runnable_ms
        self.wake()

    def wake(self) -> None:
        """Lets the writer go."""
        self._news.set()

    def close(self) -> None:
        """Ends the session."""
        self._closed = True
        self._news.set()

    async def next(self) -> engine_pb2.SessionUpdate | None:
        """Returns all that is pending, or None at the end."""
        await self._news.wait()
        self._news.clear()
        if self._closed:
            return None
        update, self._pending = self._pending, engine_pb2.SessionUpdate(epoch=self._epoch)
        self.pending_bytes = 0
        return update


class GenerateSink:
    """One request of a direct caller."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[engine_pb2.Delta | OctavoError] = asyncio.Queue()

    def accepted(self, proto: engine_pb2.GenerateRequest) -> None:
        """Nothing to tell: the first delta says it."""

    def refused(self, proto: engine_pb2.GenerateRequest, error: OctavoError) -> None:
        """Ends the stream with the error."""
        self._queue.put_nowait(error)

    def delta(self, delta: engine_pb2.Delta) -> None:
        """Queues a delta; a request has at most max_model_len x n of them."""
        self._queue.put_nowait(delta)

    def flush(self, bundle: Bundle) -> None:
        """Nothing is held back."""

    async def next(self) -> engine_pb2.Delta:
        """Returns the next delta or raises the refusal."""
        item = await self._queue.get()
        if isinstance(item, OctavoError):
            raise item
        return item
