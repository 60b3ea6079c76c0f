"""The engine's shell above the byte link, its stepper turning on the same loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest
from tests.bounds import EVENTUALLY_S
from tests.engine.harness import Engine, InlineShell, generate
from tests.fakes import expected_output

from octavo.engine import session, sinks
from octavo.engine.spans import RequestSpans
from octavo.engine.stepper import Bundle
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import CATALOGUE, OctavoError


class Gateway:
    """The other end of a session."""

    def __init__(self, shell: session.EngineShell) -> None:
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._updates = shell.session(self._incoming())
        self.deltas: list[engine_pb2.Delta] = []
        self.accepted: list[tuple[str, int]] = []
        self.refused: dict[str, str] = {}
        self.heartbeats = 0
        self.ended = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()
        self._reader = asyncio.create_task(self._read())

    async def _incoming(self) -> AsyncIterator[bytes]:
        while (data := await self._out.get()) is not None:
            yield data

    async def _read(self) -> None:
        async with aclosing(self._updates) as updates:
            async for data in updates:
                update = engine_pb2.SessionUpdate.FromString(data)
                assert update.epoch == 42
                self.deltas.extend(update.deltas)
                refs = [a.attempt_ref for a in update.accepted]
                self.accepted += [(r.request_id, r.attempt) for r in refs]
                for refused in update.refused:
                    name = CATALOGUE[refused.error.code].name
                    self.refused[refused.attempt_ref.request_id] = name
                self.heartbeats += not (update.deltas or update.accepted or update.refused)
                await self.reading.wait()
        self.ended.set()

    def send(
        self,
        *protos: engine_pb2.GenerateRequest,
        cancel: tuple[tuple[str, int], ...] = (),
    ) -> None:
        refs = [engine_pb2.AttemptRef(request_id=r, attempt=a) for r, a in cancel]
        message = engine_pb2.SessionRequest(generate=protos, cancel=refs)
        self._out.put_nowait(message.SerializeToString())

    def send_raw(self, data: bytes) -> None:
        self._out.put_nowait(data)

    def close(self) -> None:
        self._out.put_nowait(None)

    def ids(self, request_id: str) -> list[int]:
        return [t for d in self.deltas if d.request_id == request_id for t in d.token_ids]

    def finished(self, request_id: str) -> bool:
        mine = [d for d in self.deltas if d.request_id == request_id]
        return bool(mine) and mine[-1].finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(EVENTUALLY_S):
        while not condition():
            await asyncio.sleep(0.001)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def test_many_requests_share_one_session() -> None:
    async def check() -> None:
        gateway = Gateway(InlineShell().shell)
        requests = [generate([i] * 20, seed=i, max_tokens=9, request_id=str(i)) for i in range(6)]
        gateway.send(*requests)
        await until(lambda: all(gateway.finished(str(i)) for i in range(6)))
        assert gateway.accepted == [(str(i), 0) for i in range(6)]
        for i in range(6):
            assert gateway.ids(str(i)) == expected_output([i] * 20, i, 9)

    run(check)


def test_an_idle_session_has_heartbeats() -> None:
    async def check() -> None:
        gateway = Gateway(InlineShell().shell)
        await until(lambda: gateway.heartbeats >= 2)

    run(check)


def test_cancel_frees_the_blocks_and_says_nothing() -> None:
    async def check() -> None:
        inline = InlineShell()
        gateway = Gateway(inline.shell)
        gateway.send(generate([1] * 20, max_tokens=400, request_id="a"))
        await until(lambda: len(gateway.deltas) > 3)
        gateway.send(cancel=(("a", 0), ("unknown", 3)))
        await until(lambda: inline.engine.core.num_open == 0)
        assert not gateway.finished("a")
        inline.engine.assert_idle()

    run(check)


@pytest.mark.parametrize("how", ["closed", "garbage"])
def test_a_lost_gateway_frees_all_its_requests(how: str) -> None:
    async def check() -> None:
        inline = InlineShell()
        gone, other = Gateway(inline.shell), Gateway(inline.shell)
        for gateway in (gone, other):
            gateway.send(generate([1] * 20, max_tokens=300, seed=5, request_id="same"))
        await until(lambda: len(gone.deltas) > 3)
        if how == "closed":
            gone.close()
        else:
            gone.send_raw(b"\xff\xff\xff\xff")
        await until(gone.ended.is_set)
        await until(lambda: other.finished("same"))
        assert other.ids("same") == expected_output([1] * 20, 5, 300)
        inline.engine.assert_idle()

    run(check)


def test_a_gateway_that_does_not_read_loses_its_session_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reliability 2.5: the step loop never waits for a reader."""
    monkeypatch.setattr(sinks, "MAX_PENDING_BYTES", 2000)

    async def check() -> None:
        inline = InlineShell()
        slow, other = Gateway(inline.shell), Gateway(inline.shell)
        slow.reading.clear()
        slow.send(generate([1] * 20, max_tokens=400, request_id="slow"))
        other.send(generate([2] * 20, max_tokens=300, seed=1, request_id="other"))
        await until(lambda: other.finished("other"))
        # The requests are ended although the writer of the session still waits.
        assert inline.engine.core.num_open == 0
        slow.reading.set()
        await until(slow.ended.is_set)
        assert not slow.finished("slow")
        inline.engine.assert_idle()

    run(check)


def test_refusals_carry_the_catalogues_error_and_nothing_is_run() -> None:
    async def check() -> None:
        inline = InlineShell()
        gateway = Gateway(inline.shell)
        gateway.send(
            generate([1], request_id=""),
            generate([], request_id="empty"),
            generate([999], request_id="vocabulary"),
            generate([1] * 600, request_id="long"),
            generate([1], model="other", request_id="model"),
            generate([1], max_tokens=300, request_id="twice"),
            generate([1], max_tokens=300, request_id="twice"),
        )
        await until(lambda: len(gateway.refused) == 6)
        assert gateway.refused == {
            "": "invalid_value",
            "empty": "invalid_value",
            "vocabulary": "invalid_value",
            "long": "context_length_exceeded",
            "model": "model_not_found",
            "twice": "invalid_value",
        }
        assert gateway.accepted == [("twice", 0)]

    run(check)


def test_generate_tokenises_text_and_keeps_control_tokens_of_callers_plain() -> None:
    async def check() -> None:
        shell = InlineShell().shell
        proto = engine_pb2.GenerateRequest(text="a<|end|>", max_tokens=3, model="fake")
        proto.sampling.seed = 1
        deltas = [d async for d in shell.generate(proto, "id")]
        prompt = list(b"a<|end|>")
        assert list(deltas[0].prompt_token_ids) == prompt
        assert [t for d in deltas for t in d.token_ids] == expected_output(prompt, 1, 3)
        assert {d.request_id for d in deltas} == {"id"}

    run(check)


def test_generate_renders_messages_with_the_models_template() -> None:
    async def check() -> None:
        shell = InlineShell().shell
        proto = engine_pb2.GenerateRequest(max_tokens=1)
        proto.messages.messages.add(role="user", content="hi")
        (delta,) = [d async for d in shell.generate(proto, "id")]
        ids = list(delta.prompt_token_ids)
        assert ids == [257, *b"user\nhi", 256, 257, *b"assistant\n"]

    run(check)


def test_generate_raises_refusals_and_frees_when_abandoned() -> None:
    async def check() -> None:
        inline = InlineShell()
        with pytest.raises(OctavoError, match="missing"):
            await anext(inline.shell.generate(engine_pb2.GenerateRequest(), "id"))
        stream = inline.shell.generate(generate([1], max_tokens=400), "id")
        await anext(stream)
        await stream.aclose()
        await until(lambda: inline.engine.core.num_open == 0)
        inline.engine.assert_idle()

    run(check)


def test_before_the_model_is_loaded_requests_are_told_to_wait() -> None:
    async def check() -> None:
        shell = session.EngineShell(epoch=42, spans=RequestSpans())
        shell.feed.set_stage(engine_pb2.STAGE_WARMING, "warm-up", eta_ms=1500)
        gateway = Gateway(shell)
        gateway.send(generate([1], request_id="early"))
        await until(lambda: bool(gateway.refused))
        assert gateway.refused == {"early": "model_loading"}
        with pytest.raises(OctavoError, match="warm-up") as error:
            shell.card()
        assert error.value.retry_after_ms == 1500

    run(check)


def test_drain_refuses_new_requests_and_waits_for_those_that_run() -> None:
    async def check() -> None:
        inline = InlineShell()
        gateway = Gateway(inline.shell)
        gateway.send(generate([1] * 20, max_tokens=50, seed=2, request_id="runs"))
        await until(lambda: bool(gateway.accepted))
        counts = [n async for n in inline.shell.drain(None)]
        assert counts[-1] == 0
        gateway.send(generate([1], request_id="late"))
        await until(lambda: bool(gateway.refused))
        assert gateway.refused == {"late": "draining"}
        assert gateway.ids("runs") == expected_output([1] * 20, 2, 50)

    run(check)


def test_drain_aborts_what_outlives_its_grace() -> None:
    async def check() -> None:
        inline = InlineShell(Engine(num_blocks=2000, max_model_len=30000))
        gateway = Gateway(inline.shell)
        gateway.send(generate([1] * 20, request_id="endless"))
        await until(lambda: bool(gateway.accepted))
        assert [n async for n in inline.shell.drain(0.05)][-1] == 0
        await until(lambda: gateway.finished("endless"))
        assert gateway.deltas[-1].finish_reason == common_pb2.FINISH_REASON_ABORT
        inline.engine.assert_idle()

    run(check)


def test_a_drain_while_loading_is_not_forgotten() -> None:
    async def check() -> None:
        ready = InlineShell()
        shell = session.EngineShell(epoch=42, spans=RequestSpans())
        assert [n async for n in shell.drain(None)] == [0]
        shell.feed.set_stage(engine_pb2.STAGE_WARMING)
        assert not shell.attach(ready.loaded)
        assert shell.feed.stage == engine_pb2.STAGE_DRAINING
        with pytest.raises(OctavoError, match="shutting down"):
            await anext(shell.generate(generate([1]), "id"))

    run(check)


def test_what_was_sent_before_a_drain_is_still_let_in() -> None:
    async def check() -> None:
        inline = InlineShell()
        gateway = Gateway(inline.shell)
        gateway.send(generate([1] * 20, max_tokens=9, seed=1, request_id="just"))
        while not inline.stepper.num_queued:
            await asyncio.sleep(0)
        inline.shell.on_bundle(Bundle(step=1, oldest_runnable_ms=0, remaining=0))
        assert [n async for n in inline.shell.drain(None)][-1] == 0
        await until(lambda: gateway.finished("just"))

    run(check)


def test_reset_cache_refuses_while_blocks_are_in_use() -> None:
    async def check() -> None:
        inline = InlineShell()
        gateway = Gateway(inline.shell)
        gateway.send(generate([1] * 20, max_tokens=200, request_id="a"))
        await until(lambda: len(gateway.deltas) > 1)
        assert not await inline.shell.reset_cache()
        gateway.send(cancel=(("a", 0),))
        await until(lambda: inline.engine.core.num_open == 0)
        assert await inline.shell.reset_cache()

    run(check)


def test_the_card_comes_first_and_its_files_in_pieces() -> None:
    async def check() -> None:
        chunks = InlineShell().shell.card()
        assert chunks[0].card.model == "fake"
        data = b"".join(c.file.data for c in chunks[1:])
        assert data.startswith(b'{"version"')

    run(check)
