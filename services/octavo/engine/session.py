"""The engine's shell above the byte link: sessions, single requests, cards, drain.

Everything here is asyncio without transport: bytes of octavo.v1 come in and go out, so that the
same code runs behind gRPC and inside a simulation. The stepping side reaches it through
`on_bundle`, called on this loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from google.protobuf.message import DecodeError

from octavo.engine.prompt import PromptEncoder
from octavo.engine.spans import RequestSpans
from octavo.engine.state_feed import StateFeed
from octavo.engine.stepper import Bundle, Cancel, CancelAll, Command, Drain, Reset, Submit
from octavo.v1 import common_pb2, engine_pb2, limits
from octavo.v1.errors import DRAINING, INVALID_VALUE, MODEL_LOADING, OctavoError

log = structlog.get_logger(__name__)

MAX_PENDING_DELTAS: Final = 16384
"""Deltas that a gateway may leave unread before its session ends; about 256 a request at 64."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What exists once the model is loaded."""

    card: engine_pb2.ModelCard
    files: tuple[tuple[str, bytes], ...]
    encoder: PromptEncoder
    put: Callable[[Command], None]


class EngineShell:
    """All sessions of one engine."""

    def __init__(self, *, epoch: int, spans: RequestSpans) -> None:
        self.epoch = epoch
        self.feed = StateFeed(epoch)
        self.remaining = 0
        self._spans = spans
        self._loaded: Loaded | None = None
        self._sinks: dict[object, Sink] = {}
        self._bundle_seen = asyncio.Event()

    def attach(self, loaded: Loaded) -> None:
        """Opens the engine for requests."""
        self._loaded = loaded
        self.feed.set_stage(engine_pb2.STAGE_READY)

    def on_bundle(self, bundle: Bundle) -> None:
        """Hands out what one turn of the stepper had to tell."""
        self.remaining = bundle.remaining
        for sink, proto in bundle.accepted:
            if (live := self._sinks.get(sink)) is not None:
                self._spans.begin(sink, proto)
                live.accepted(proto)
        for sink, proto, error in bundle.refused:
            if (live := self._sinks.get(sink)) is not None:
                live.refused(proto, error)
        for sink, delta in bundle.deltas:
            if delta.HasField("usage"):
                self._spans.end(sink, delta)
            if (live := self._sinks.get(sink)) is not None:
                live.delta(delta)
        for s in self._sinks.values():
            s.flush(bundle)
        self.feed.on_bundle(bundle)
        self._bundle_seen.set()

    def submit(self, sink: Sink, proto: engine_pb2.GenerateRequest) -> bool:
        """Queues a request; returns whether its prompt had to be tokenised here.

        Raises:
            OctavoError: while loading, while draining, or for a prompt that cannot be encoded.
        """
        loaded = self.loaded()
        encoded = loaded.encoder.encode(proto)
        loaded.put(Submit(proto=proto, sink=sink))
        return encoded

    def loaded(self) -> Loaded:
        """Returns the loaded model or raises MODEL_LOADING or DRAINING."""
        if self.feed.stage == engine_pb2.STAGE_DRAINING:
            raise OctavoError(DRAINING, retry_after_ms=1000)
        if self._loaded is None:
            eta = self.feed.eta_ms or 5000
            raise OctavoError(MODEL_LOADING, stage=self.feed.stage_text, retry_after_ms=eta)
        return self._loaded

    def put(self, command: Command) -> None:
        """Passes a command to the stepper, if there is one."""
        if self._loaded is not None:
            self._loaded.put(command)

    async def session(self, incoming: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Runs one gateway's session: yields SessionUpdate bytes until either side ends it."""
        sink = SessionSink(self.epoch)
        self._sinks[sink] = sink
        reader = asyncio.create_task(self._read(incoming, sink))
        try:
            while (update := await sink.next()) is not None:
                yield update.SerializeToString()
        finally:
            del self._sinks[sink]
            self.put(CancelAll(sink))
            self._spans.drop(sink)
            reader.cancel()

    async def _read(self, incoming: AsyncIterator[bytes], sink: SessionSink) -> None:
        try:
            async for data in incoming:
                request = engine_pb2.SessionRequest.FromString(data)
                for proto in request.generate:
                    self._submit_in_session(sink, proto)
                for ref in request.cancel:
                    self._spans.abort(sink, ref.request_id, ref.attempt)
                    cancel = Cancel(request_id=ref.request_id, attempt=ref.attempt, sink=sink)
                    self.put(cancel)
        except DecodeError:
            log.warning("session_not_protobuf")
        finally:
            sink.close()

    def _submit_in_session(self, sink: SessionSink, proto: engine_pb2.GenerateRequest) -> None:
        try:
            if not proto.request_id:
                raise OctavoError(INVALID_VALUE, param="request_id", reason="is empty")
            self.submit(sink, proto)
        except OctavoError as error:
            sink.refused(proto, error)
            sink.wake()

    async def generate(
        self, proto: engine_pb2.GenerateRequest, request_id: str
    ) -> AsyncGenerator[engine_pb2.Delta, None]:
        """Runs one request for a direct caller; raises OctavoError when it is refused."""
        proto.request_id = proto.request_id or request_id
        sink = GenerateSink()
        self._sinks[sink] = sink
        try:
            encoded = self.submit(sink, proto)
            open_choices = proto.n or 1
            while open_choices:
                delta = await sink.next()
                if encoded and delta.choice == 0:
                    delta.prompt_token_ids.extend(proto.token_ids.ids)
                    encoded = False
                open_choices -= delta.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED
                yield delta
        finally:
            del self._sinks[sink]
            self.put(CancelAll(sink))
            self._spans.drop(sink)

    def card(self) -> list[engine_pb2.CardChunk]:
        """Returns the model card and its files in pieces; raises MODEL_LOADING before that."""
        loaded = self.loaded()
        chunks = [engine_pb2.CardChunk(card=loaded.card)]
        step = limits.MAX_FILE_PIECE_BYTES
        for name, data in loaded.files:
            for i in range(0, len(data), step):
                piece = engine_pb2.FilePiece(name=name, data=data[i : i + step])
                chunks.append(engine_pb2.CardChunk(file=piece))
        return chunks

    async def drain(self, grace_s: float | None) -> AsyncIterator[int]:
        """Stops admission and yields how many requests are left, each second and at the end.

        Args:
            grace_s: what still runs then is aborted; None waits for all.
        """
        self.put(Drain())
        self.feed.set_stage(engine_pb2.STAGE_DRAINING, "draining")
        loop = asyncio.get_running_loop()
        end = None if grace_s is None else loop.time() + grace_s
        await self._next_bundle()
        while self.remaining:
            yield self.remaining
            if end is not None and loop.time() >= end:
                self.put(CancelAll(None))
                end = None
            wait = 1.0 if end is None else min(1.0, max(end - loop.time(), 0.0))
            try:
                async with asyncio.timeout(wait):
                    while self.remaining:
                        await self._next_bundle()
            except TimeoutError:
                continue
        yield 0

    async def _next_bundle(self) -> None:
        if self._loaded is None:
            return
        self._bundle_seen.clear()
        await self._bundle_seen.wait()

    async def reset_cache(self) -> bool:
        """Forgets the prefix cache; returns False when blocks were in use."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()

        def done(outcome: bool) -> None:  # on the stepping thread
            loop.call_soon_threadsafe(future.set_result, outcome)

        self.loaded().put(Reset(done))
        return await future


class SessionSink:
    """What a gateway has not read yet, merged into one message."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._pending = engine_pb2.SessionUpdate(epoch=epoch)
        self._news = asyncio.Event()
        self._closed = False

    def accepted(self, proto: engine_pb2.GenerateRequest) -> None:
        """Notes an accepted attempt."""
        ref = self._pending.accepted.add().attempt_ref
        ref.request_id, ref.attempt = proto.request_id, proto.attempt

    def refused(self, proto: engine_pb2.GenerateRequest, error: OctavoError) -> None:
        """Notes a refused attempt."""
        refused = self._pending.refused.add(error=error.to_proto())
        refused.attempt_ref.request_id = proto.request_id
        refused.attempt_ref.attempt = proto.attempt

    def delta(self, delta: engine_pb2.Delta) -> None:
        """Notes new tokens; a gateway that does not read loses its session."""
        self._pending.deltas.append(delta)
        if len(self._pending.deltas) > MAX_PENDING_DELTAS:
            log.warning("slow_consumer", pending=len(self._pending.deltas))
            self.close()

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
        return update


class GenerateSink:
    """One request of a direct caller."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[engine_pb2.Delta | OctavoError] = asyncio.Queue()

    def accepted(self, proto: engine_pb2.GenerateRequest) -> None:
        """Nothing to tell: the first delta says it."""

    def refused(self, _proto: engine_pb2.GenerateRequest, error: OctavoError) -> None:
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
