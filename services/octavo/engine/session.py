"""The engine's shell above the byte link: sessions, single requests, cards, drain.

Everything here is asyncio without transport: bytes of octavo.v1 come in and go out, so that the
same code runs behind gRPC and inside a simulation. The stepping side reaches it through
`on_bundle`, called on this loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from google.protobuf.message import DecodeError

from octavo.engine.pin_orders import ListPins, PinPrefix, UnpinPrefix
from octavo.engine.prompt import PromptEncoder
from octavo.engine.sinks import GenerateSink, SessionSink, Sink
from octavo.engine.spans import RequestSpans
from octavo.engine.state_feed import StateFeed
from octavo.engine.stepper import Bundle, Cancel, CancelAll, Command, Drain, Reset, Submit
from octavo.v1 import common_pb2, engine_pb2, limits
from octavo.v1.errors import DRAINING, INVALID_VALUE, MODEL_LOADING, OctavoError

log = structlog.get_logger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What exists once the model is loaded."""

    card: engine_pb2.ModelCard
    files: tuple[tuple[str, bytes], ...]
    encoder: PromptEncoder
    put: Callable[[Command], None]
    count_slow: Callable[[], None] = lambda: None
    """Counts a session that ended because its gateway did not read."""


class EngineShell:
    """All sessions of one engine."""

    def __init__(self, *, epoch: int, spans: RequestSpans) -> None:
        self.epoch = epoch
        self.feed = StateFeed(epoch)
        self.remaining = 0
        self._spans = spans
        self._loaded: Loaded | None = None
        self._sinks: dict[object, Sink] = {}
        self._draining = False
        self._bundle_seen = asyncio.Event()

    def attach(self, loaded: Loaded) -> bool:
        """Opens the engine for requests, unless it was told to drain while it loaded.

        Returns:
            Whether it is open.
        """
        self._loaded = loaded
        if self.feed.stage == engine_pb2.STAGE_DRAINING:
            loaded.put(Drain())
            return False
        self.feed.set_stage(engine_pb2.STAGE_READY)
        return True

    def on_bundle(self, bundle: Bundle) -> None:
        """Hands out what one turn of the stepper had to tell."""
        self.remaining, self._draining = bundle.remaining, bundle.draining
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

        def on_slow() -> None:
            self.put(CancelAll(sink))
            if self._loaded is not None:
                self._loaded.count_slow()

        sink = SessionSink(self.epoch, on_slow)
        self._sinks[sink] = sink
        sink.wake()  # the first message says at once who answers
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
        while self._loaded is not None and not self._draining:
            await self._next_bundle()  # what was sent before the drain is still let in
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
        self._bundle_seen.clear()
        await self._bundle_seen.wait()

    async def reset_cache(self) -> bool:
        """Forgets the prefix cache; returns False when blocks were in use."""
        return await self._ask(Reset)

    async def pin(self, proto: engine_pb2.PinPrefixRequest) -> engine_pb2.PinPrefixResponse:
        """Computes and pins a prefix; raises OctavoError when it cannot."""
        prefix = self.loaded().encoder.encode_prefix(proto)
        ttl_s = proto.ttl_ms / 1e3 if proto.ttl_ms else None
        return await self._ask(lambda done: PinPrefix(proto=prefix, ttl_s=ttl_s, done=done))

    async def unpin(self, proto: engine_pb2.UnpinPrefixRequest) -> engine_pb2.UnpinPrefixResponse:
        """Ends a pin; raises OctavoError when there is none of this name."""
        return await self._ask(lambda done: UnpinPrefix(pin_id=proto.pin_id, done=done))

    async def list_pins(self, _: engine_pb2.ListPinsRequest) -> engine_pb2.ListPinsResponse:
        """Returns all pins."""
        return await self._ask(ListPins)

    async def _ask(self, command: Callable[[Callable[[_T | OctavoError], None]], Command]) -> _T:
        """Returns what the stepping thread answers to a command, or raises it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T | OctavoError] = loop.create_future()

        def tell(outcome: _T | OctavoError) -> None:
            if not future.done():  # the caller may have gone
                future.set_result(outcome)

        def done(outcome: _T | OctavoError) -> None:  # on the stepping thread
            loop.call_soon_threadsafe(tell, outcome)

        self.loaded().put(command(done))
        answer = await future
        if isinstance(answer, OctavoError):
            raise answer
        return answer
