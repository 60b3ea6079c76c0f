"""A scripted engine behind a real gRPC server: octavo.v1 as the gateway meets it.

Tokens are a pure function of prompt, seed, choice and position, so a retry elsewhere gives the same
answer. Blocks of finished prompts are published as events and hit by later prompts, as in the real
engine. `Script` says what goes wrong. Run as a program it can be killed or stopped for real.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeAlias

import grpc.aio
from tests.gateway.byte_model import SPECIALS, TEMPLATE, token_at, tokenizer_json
from tests.gateway.script import Script

from octavo.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from octavo.v1.block_hash import (
    BLOCK_TOKENS,
    DIGEST_BYTES,
    BlockHash,
    digest,
    extend_chain,
    hash_root,
    model_identity,
)
from octavo.v1.errors import MODEL_NOT_FOUND, OctavoError
from octavo.v1.features import (
    FEATURE_BEAM,
    FEATURE_PRIORITY,
    FEATURE_RESUME,
    FEATURE_STATE_EVENTS,
)

HEARTBEAT_S = 0.5
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
)


def _answer(_: engine_pb2.GenerateRequest) -> Script:
    return Script()


@dataclass(slots=True)
class _Session:
    outbox: asyncio.Queue[engine_pb2.SessionUpdate | None] = field(default_factory=asyncio.Queue)
    running: dict[tuple[str, int], asyncio.Task[None]] = field(default_factory=dict)


class FakeEngine(engine_pb2_grpc.EngineServicer):
    """One engine; `start`, then `address`."""

    def __init__(
        self,
        *,
        model: str = "tiny",
        served_names: tuple[str, ...] = ("tiny",),
        num_blocks: int = 4096,
        max_model_len: int = 4096,
        weights_version: str = "w1",
        numerics_id: str = "fake",
        stage: engine_pb2.Stage.ValueType = engine_pb2.STAGE_READY,
        publish: bool = True,
        default_tokens: int = 8,
        files: dict[str, bytes] | None = None,
        script: Callable[[engine_pb2.GenerateRequest], Script] | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.script = script or _answer
        self.credentials = credentials
        """With which it is started the next time; None: it speaks plaintext."""
        self.requests: list[engine_pb2.GenerateRequest] = []
        """Every attempt received, in order."""
        self.messages: list[engine_pb2.SessionRequest] = []
        self.cancelled: list[tuple[str, int]] = []
        self.load = engine_pb2.Load(prefill_us_per_token=400, decode_us_per_step=5000)
        self.blocks: dict[bytes, None] = {}
        """Blocks held, in order of use."""
        self.epoch = 1
        self.stage = stage
        self.detail = ""
        self.eta_ms = 0
        self.mute = False
        """True: says nothing at all, though connections stay open."""
        self.oldest_runnable_ms = 0
        """Above zero: says that work waits, though its step counter never moves."""
        self.num_state_streams = 0
        self._publish = publish
        self._default_tokens = default_tokens
        self._num_blocks = num_blocks
        self._streams: list[asyncio.Queue[engine_pb2.StateUpdate]] = []
        self._sessions: list[_Session] = []
        self._serving: asyncio.Task[None] | None = None
        self._port = 0
        files = files or {
            "tokenizer.json": tokenizer_json(),
            "chat_template.jinja": TEMPLATE.encode(),
        }
        self.files = files
        self.card = engine_pb2.ModelCard(
            model=model,
            served_names=served_names,
            identity=model_identity(
                model=model,
                revision="",
                tokenizer_digest=digest(files["tokenizer.json"]),
                weights_version=weights_version,
            ),
            block_tokens=BLOCK_TOKENS,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            vocab_size=256 + len(SPECIALS),
            max_num_seqs=64,
            eos_token_ids=[256, 258],
            numerics_id=numerics_id,
            exact=True,
            features=FEATURE_RESUME | FEATURE_STATE_EVENTS | FEATURE_PRIORITY | FEATURE_BEAM,
            weights_version=weights_version,
            dtype="float32",
            created_unix_s=1_700_000_000,
            files=[
                engine_pb2.CardFile(
                    name=name,
                    size_bytes=len(data),
                    blake2b=blake2b(data, digest_size=DIGEST_BYTES).digest(),
                )
                for name, data in files.items()
            ],
        )

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._port}"

    async def start(self, port: int = 0) -> FakeEngine:
        """Listens until it is killed or its loop ends; the port stays the same over restarts."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        engine_pb2_grpc.add_EngineServicer_to_server(self, server)
        listen = f"127.0.0.1:{port or self._port}"
        if self.credentials is None:
            self._port = server.add_insecure_port(listen)
        else:
            self._port = server.add_secure_port(listen, self.credentials)
        await server.start()
        self._serving = asyncio.create_task(_serve(server))
        await asyncio.sleep(0)  # a task that is cancelled before it begins ends nothing
        return self

    async def kill(self) -> None:
        """Breaks every stream off and stops listening."""
        serving, self._serving = self._serving, None
        for session in self._sessions:
            for task in session.running.values():
                task.cancel()
        self._sessions.clear()
        self._streams.clear()
        if serving is not None:
            serving.cancel()
            await asyncio.wait([serving])

    async def restart(self) -> None:
        """A new process at the same address: another epoch, an empty cache."""
        await self.kill()
        self.epoch += 1
        self.blocks.clear()
        await self.start()

    def set_stage(
        self, stage: engine_pb2.Stage.ValueType, detail: str = "", eta_ms: int = 0
    ) -> None:
        """Changes the life cycle and tells every listener."""
        self.stage, self.detail, self.eta_ms = stage, detail, eta_ms
        self.send_state()

    def send_state(self, *, stored: Iterable[bytes] = (), removed: Iterable[bytes] = ()) -> None:
        """Tells every listener the stage, the load and the given events."""
        update = self._state_update()
        update.stored.extend(engine_pb2.StoredBlock(hash=h) for h in stored)
        update.removed.extend(removed)
        for stream in self._streams:
            stream.put_nowait(update)

    def lose_state_message(self) -> None:
        """Makes the next number of every state stream skip one."""
        for stream in self._streams:
            stream.put_nowait(engine_pb2.StateUpdate(epoch=0))

    def hold(self, hashes: Iterable[bytes]) -> None:
        """Takes blocks into the cache, evicting the oldest, and publishes both."""
        stored = [h for h in hashes if h not in self.blocks]
        self.blocks.update(dict.fromkeys(stored))
        removed = list(self.blocks)[: max(0, len(self.blocks) - self._num_blocks)]
        for block in removed:
            del self.blocks[block]
        self.send_state(stored=[h for h in stored if h in self.blocks], removed=removed)

    @property
    def num_running(self) -> int:
        """Attempts that run."""
        return sum(len(s.running) for s in self._sessions)

    def _state_update(self) -> engine_pb2.StateUpdate:
        return engine_pb2.StateUpdate(
            epoch=self.epoch,
            stage=self.stage,
            detail=self.detail,
            eta_ms=self.eta_ms,
            load=self.load,
        )

    async def State(  # noqa: N802
        self, request: engine_pb2.StateRequest, context: _Context
    ) -> AsyncIterator[engine_pb2.StateUpdate]:
        self.num_state_streams += 1
        stream: asyncio.Queue[engine_pb2.StateUpdate] = asyncio.Queue()
        first = self._state_update()
        first.cleared = True
        first.stored.extend(engine_pb2.StoredBlock(hash=h) for h in self.blocks)
        stream.put_nowait(first)
        self._streams.append(stream)
        seq = 0
        try:
            while True:
                update = engine_pb2.StateUpdate()
                update.CopyFrom(await stream.get())
                await self._unmuted()
                seq += 1
                update.seq = seq
                if update.epoch:
                    yield update
        finally:
            if stream in self._streams:
                self._streams.remove(stream)

    async def Card(  # noqa: N802
        self, request: engine_pb2.CardRequest, context: _Context
    ) -> AsyncIterator[engine_pb2.CardChunk]:
        await self._unmuted()
        if self.stage not in (engine_pb2.STAGE_READY, engine_pb2.STAGE_DRAINING):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "loading")
        self.card.epoch = self.epoch
        yield engine_pb2.CardChunk(card=self.card)
        for name, data in self.files.items():
            for start in range(0, len(data), 1000):
                piece = engine_pb2.FilePiece(name=name, data=data[start : start + 1000])
                yield engine_pb2.CardChunk(file=piece)

    async def Session(  # noqa: N802
        self,
        request_iterator: AsyncIterator[engine_pb2.SessionRequest],
        context: _Context,
    ) -> AsyncIterator[engine_pb2.SessionUpdate]:
        session = _Session()
        session.outbox.put_nowait(engine_pb2.SessionUpdate())
        self._sessions.append(session)
        reader = asyncio.create_task(self._read(session, request_iterator))
        try:
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        update = await session.outbox.get()
                except TimeoutError:
                    update = engine_pb2.SessionUpdate()
                if update is None:
                    break
                await self._unmuted()
                update.epoch = update.epoch or self.epoch
                update.oldest_runnable_ms = self.oldest_runnable_ms
                yield update
        finally:
            reader.cancel()
            for task in session.running.values():
                task.cancel()
            if session in self._sessions:
                self._sessions.remove(session)

    async def Generate(  # noqa: N802
        self, request: engine_pb2.GenerateRequest, context: _Context
    ) -> AsyncIterator[engine_pb2.Delta]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the gateway uses sessions")
        yield engine_pb2.Delta()

    async def _unmuted(self) -> None:
        while self.mute:
            await asyncio.sleep(0.02)

    async def _read(
        self, session: _Session, requests: AsyncIterator[engine_pb2.SessionRequest]
    ) -> None:
        async for message in requests:
            await self._unmuted()
            self.messages.append(message)
            for ref in message.cancel:
                key = (ref.request_id, ref.attempt)
                self.cancelled.append(key)
                if task := session.running.pop(key, None):
                    task.cancel()
            for request in message.generate:
                self.requests.append(request)
                key = (request.request_id, request.attempt)
                session.running[key] = asyncio.create_task(self._run(session, request))

    async def _run(self, session: _Session, request: engine_pb2.GenerateRequest) -> None:
        key = (request.request_id, request.attempt)
        script = self.script(request)
        ref = engine_pb2.AttemptRef(request_id=key[0], attempt=key[1])
        try:
            refuse = script.refuse
            if request.model not in ("", *self.card.served_names):
                refuse = OctavoError(MODEL_NOT_FOUND, model=request.model, served="", closest="")
            if refuse is not None:
                refused = engine_pb2.Refused(attempt_ref=ref, error=refuse.to_proto())
                session.outbox.put_nowait(engine_pb2.SessionUpdate(refused=[refused]))
            elif script.answer:
                accepted = engine_pb2.Accepted(attempt_ref=ref)
                session.outbox.put_nowait(engine_pb2.SessionUpdate(accepted=[accepted]))
                await self._generate(session, request, script)
            else:
                await asyncio.Event().wait()
        finally:
            session.running.pop(key, None)

    async def _generate(
        self, session: _Session, request: engine_pb2.GenerateRequest, script: Script
    ) -> None:
        if script.go is not None:
            await script.go.wait()
        await asyncio.sleep(script.first_delay_s)
        usage = self._prefill(request)
        total = (
            script.tokens
            if script.tokens is not None
            else request.max_tokens or self._default_tokens
        )
        prompt, n = request.token_ids.ids, request.n or 1
        starts = {r.choice: len(r.output_ids) for r in request.resumes} or dict.fromkeys(
            range(n), 0
        )
        usage.output_tokens = total * len(starts)
        for position in range(min(starts.values()), total):
            if script.die_after == position:
                # Not from this task: stopping the server waits for it.
                self._dying = asyncio.create_task(self.kill())
                return
            if script.stop_after == position:
                await asyncio.Event().wait()
            if position:
                await asyncio.sleep(script.delay_s)
            update = engine_pb2.SessionUpdate()
            for choice in [c for c, start in starts.items() if start <= position]:
                delta = update.deltas.add(
                    request_id=request.request_id,
                    attempt=request.attempt,
                    choice=choice,
                    position=position,
                )
                if script.fail_after is not None and script.fail_after[0] == position:
                    delta.finish_reason = common_pb2.FINISH_REASON_ERROR
                    delta.error.CopyFrom(script.fail_after[1].to_proto())
                    continue
                if script.hand_over_after == position:
                    delta.finish_reason = common_pb2.FINISH_REASON_ABORT
                    delta.text = "held back"
                    continue
                token = token_at(prompt, request.sampling.seed, choice, position)
                delta.token_ids.append(token)
                delta.text = chr(token)
                if choice == position == 0:
                    delta.cached_tokens = usage.cached_tokens
                if position == total - 1:
                    delta.finish_reason = script.finish
                    if choice == max(starts):
                        delta.usage.CopyFrom(usage)
            if script.skip_at != position:
                for _ in range(2 if script.repeat else 1):
                    session.outbox.put_nowait(update)
            if script.hand_over_after == position:
                return
            if script.fail_after is not None and script.fail_after[0] == position:
                return

    def _prefill(self, request: engine_pb2.GenerateRequest) -> engine_pb2.Usage:
        """Looks the prompt up in the cache and puts it there, as the real engine does."""
        chain: list[BlockHash] = []
        root = hash_root(self.card.identity, request.cache_salt)
        extend_chain(chain, root, list(request.token_ids.ids))
        hit = next((i for i, h in enumerate(chain) if h not in self.blocks), len(chain))
        hit = min(hit, (len(request.token_ids.ids) - 1) // BLOCK_TOKENS)
        if self._publish:
            self.hold(chain)
        return engine_pb2.Usage(
            prompt_tokens=len(request.token_ids.ids),
            cached_tokens=hit * BLOCK_TOKENS,
            queue_ms=0.25,
            prefill_ms=1.5,
            decode_ms=2.5,
        )


async def _serve(server: grpc.aio.Server) -> None:
    """Stops it when cancelled, as asyncio.run does to all tasks: also at the end of a failed test.

    A server that outlives its loop raises when it is collected, in whatever test runs by then.
    """
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop(None)


async def _main(port: int, delay_s: float) -> None:
    slow = Script(delay_s=delay_s)
    engine = await FakeEngine(script=lambda _: slow, default_tokens=1000).start(port)
    sys.stdout.write(f"{engine.address}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-s", type=float, default=0.02)
    options = parser.parse_args()
    asyncio.run(_main(options.port, options.delay_s))
