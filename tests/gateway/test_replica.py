import asyncio
import signal
import time

import pytest
from tests.gateway.byte_model import token_at
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import Gateway, engine_process, gateway, prompt, until
from tests.gateway.script import Script

from octavo.gateway import heartbeat
from octavo.gateway.attempts import Attempt, EngineLostError, Loss
from octavo.gateway.dispatch import Generation
from octavo.gateway.queue_time import Queue
from octavo.gateway.replica import stage_word
from octavo.v1 import engine_pb2
from octavo.v1.errors import ENGINE_FAILURE, OctavoError


def slow(_: engine_pb2.GenerateRequest) -> Script:
    return Script(delay_s=0.02, tokens=400)


async def drain(generation: Generation) -> None:
    while await anext(generation, None):
        pass


async def read_all(attempt: Attempt) -> None:
    while await attempt.next():
        pass


async def drop_into(gw: Gateway, engine: str, parts: list[str]) -> None:
    """Reads one long answer of a given engine."""
    replica = next(r for r in gw.replicas if r.name == engine)
    request = prompt("abc", max_tokens=1000, request_id=f"on-{engine}")
    attempt = replica.submit(request, hashes=[], prefill_tokens=3)
    while delta := await attempt.next():
        parts.append(delta.text)


def test_a_loading_engine_becomes_ready_with_its_model() -> None:
    async def scenario() -> None:
        engine = FakeEngine(stage=engine_pb2.STAGE_LOADING)
        engine.detail, engine.eta_ms = "weights", 7000
        async with gateway(engine, wait=False) as gw:
            [replica] = gw.replicas
            await until(lambda: replica.stage == engine_pb2.STAGE_LOADING)
            assert not replica.ready
            assert (replica.detail, replica.eta_ms) == ("weights", 7000)
            engine.set_stage(engine_pb2.STAGE_READY)
            await until(lambda: replica.ready)
            assert replica.model is not None
            assert replica.model.capacity.max_model_len == 4096
            ids = replica.model.tokenizer.encode("hé", allow_special=False)
            assert bytes(ids).decode() == "hé"

    asyncio.run(scenario())


def test_an_engine_that_starts_after_the_gateway_is_found() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        await engine.kill()
        async with gateway(engine.address, wait=False) as gw:
            await asyncio.sleep(0.3)
            assert not gw.replicas[0].ready
            await engine.start()
            await until(lambda: gw.replicas[0].ready)
            await engine.kill()

    asyncio.run(scenario())


def test_a_lost_engine_ends_its_attempts_at_once_and_others_go_on() -> None:
    async def scenario() -> None:
        doomed, healthy = FakeEngine(script=slow), FakeEngine(script=slow)
        async with gateway(doomed, healthy) as gw:
            kept: list[str] = []
            lost: list[str] = []
            dying = asyncio.create_task(drop_into(gw, doomed.address, lost))
            living = asyncio.create_task(drop_into(gw, healthy.address, kept))
            await until(lambda: len(lost) > 3 and len(kept) > 3)
            started = time.monotonic()
            await doomed.kill()
            with pytest.raises(Exception, match=r"UNAVAILABLE|CANCELLED|closed"):
                await dying
            assert time.monotonic() - started < 5.0
            count = len(kept)
            await until(lambda: len(kept) > count + 5)
            living.cancel()

    asyncio.run(scenario())


def test_kill_9_of_a_process_ends_its_attempts_at_once() -> None:
    async def scenario() -> None:
        async with engine_process() as (address, process), gateway(address) as gw:
            generation = await gw.open(prompt("abc", max_tokens=1000))
            await anext(generation)
            process.kill()
            started = time.monotonic()
            with pytest.raises(OctavoError) as caught:
                await drain(generation)
            assert caught.value.kind is ENGINE_FAILURE
            assert time.monotonic() - started < 10.0
            gw.check_idle()

    asyncio.run(scenario())


def test_a_stopped_process_is_noticed_within_seconds_and_taken_back_when_it_goes_on() -> None:
    async def scenario() -> None:
        async with engine_process() as (address, process), gateway(address) as gw:
            generation = await gw.open(prompt("abc", max_tokens=1000))
            await anext(generation)
            process.send_signal(signal.SIGSTOP)
            started = time.monotonic()
            with pytest.raises(OctavoError):
                await drain(generation)
            assert time.monotonic() - started < 15.0
            assert not gw.replicas[0].ready
            process.send_signal(signal.SIGCONT)
            await until(lambda: gw.replicas[0].ready, 8.0)
            again = await gw.open(prompt("abc"))
            await anext(again)
            await again.aclose()

    asyncio.run(scenario())


def test_an_engine_whose_connection_lives_but_says_nothing_is_suspected() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=slow)
        async with gateway(engine) as gw:
            generation = await gw.open(prompt("abc"))
            await anext(generation)
            engine.mute = True
            started = time.monotonic()
            with pytest.raises(OctavoError) as caught:
                await drain(generation)
            waited = time.monotonic() - started
            assert caught.value.kind is ENGINE_FAILURE
            assert heartbeat.SUSPECT_AFTER_S - 1 < waited < heartbeat.SUSPECT_AFTER_S + 1.5
            assert gw.replicas[0].suspected
            assert not gw.replicas[0].ready
            engine.mute = False
            await until(lambda: gw.replicas[0].ready, 8.0)
            assert not gw.replicas[0].suspected

    asyncio.run(scenario())


def test_an_engine_that_talks_but_makes_no_step_while_work_waits_is_suspected() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=slow)
        async with gateway(engine) as gw:
            generation = await gw.open(prompt("abc"))
            await anext(generation)
            engine.oldest_runnable_ms = 10
            with pytest.raises(OctavoError) as caught:
                await drain(generation)
            assert caught.value.kind is ENGINE_FAILURE
            assert gw.metric("retries_total", reason="engine_silent") == 1

    asyncio.run(scenario())


def test_a_suspect_is_not_ready_again_before_it_has_said_something_in_a_session() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine()) as gw:
            (replica,) = gw.replicas
            replica.suspected = True
            assert not replica.ready
            await until(lambda: replica.ready, heartbeat.SUSPECT_AFTER_S)

    asyncio.run(scenario())


@pytest.mark.parametrize("heard", [True, False])
def test_nobody_dies_in_a_session_in_which_nobody_spoke(heard: bool) -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=slow)
        async with gateway(engine) as gw:
            (replica,) = gw.replicas
            await until(lambda: replica.heard_in_session)
            engine.mute = True
            request = prompt("abc", request_id="r")
            attempt = replica.submit(request, hashes=[], prefill_tokens=3)
            replica.heard_in_session = heard
            await engine.kill()
            with pytest.raises(EngineLostError) as lost:
                await read_all(attempt)
            assert lost.value.loss is (Loss.BROKEN if heard else Loss.SILENT)

    asyncio.run(scenario())


def test_a_blocked_gateway_suspects_nobody() -> None:
    async def scenario() -> None:
        async with engine_process() as (address, _), gateway(address) as gw:
            generation = await gw.open(prompt("abc", max_tokens=1000))
            await anext(generation)
            time.sleep(heartbeat.SUSPECT_AFTER_S + 0.5)  # noqa: ASYNC251
            await asyncio.sleep(0.3)
            assert not gw.replicas[0].suspected
            await anext(generation)
            await generation.aclose()

    asyncio.run(scenario())


def test_a_restarted_engine_is_a_new_one_without_ghosts() -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        async with gateway(engine) as gw:
            [replica] = gw.replicas
            await gw.text(prompt("word " * 40))
            await until(lambda: len(replica.index) == 12)
            await engine.restart()
            await until(lambda: replica.epoch == 2 and replica.ready)
            assert len(replica.index) == 0
            assert replica.model is not None
            assert replica.model.card.epoch == 2
            assert await gw.text(prompt("abc"))

    asyncio.run(scenario())


def test_a_gap_in_the_events_costs_a_new_snapshot_and_no_stream() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=slow)
        async with gateway(engine) as gw:
            [replica] = gw.replicas
            generation = await gw.open(prompt("abc", max_tokens=400))
            await anext(generation)
            engine.lose_state_message()
            engine.blocks[b"x" * 16] = None
            engine.send_state()
            await until(lambda: engine.num_state_streams == 2)
            await until(lambda: replica.index.held() == {b"x" * 16})
            assert replica.ready
            await anext(generation)
            await generation.aclose()

    asyncio.run(scenario())


def test_messages_of_another_life_are_not_delivered() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=slow)
        async with gateway(engine) as gw:
            generation = await gw.open(prompt("abc", max_tokens=400))
            await anext(generation)
            engine.epoch = 2
            with pytest.raises(OctavoError) as caught:
                await drain(generation)
            assert caught.value.kind is ENGINE_FAILURE
            gw.check_idle()

    asyncio.run(scenario())


def test_a_load_report_takes_over_what_the_gateway_counted_itself() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=lambda _: Script(first_delay_s=30))
        async with gateway(engine) as gw:
            [replica] = gw.replicas
            generation = await gw.open(prompt("x" * 500))
            assert replica.view([], reads_cache=True).queued_tokens == 500
            assert (replica.queue().waiting, replica.queue().queued_tokens) == (1, 500)
            assert replica.queue().waiting_tokens == 500
            engine.load.queued_prefill_tokens, engine.load.waiting_tokens = 200, 0
            engine.load.running = 9
            engine.send_state()
            await until(lambda: replica.load.running == 9)
            view = replica.view([], reads_cache=True)
            assert (view.queued_tokens, view.running, view.in_flight) == (200, 9, 1)
            assert view.prefill_s_per_token == pytest.approx(400e-6)
            queue = replica.queue()
            assert (queue.running, queue.waiting, queue.queued_tokens) == (9, 0, 200)
            assert queue.waiting_tokens == 0
            await generation.aclose()

    asyncio.run(scenario())


def test_what_an_engine_has_and_tells_is_what_a_request_finds() -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        engine.card.max_num_seqs, engine.card.pin_blocks = 16, 96
        engine.load.running, engine.load.waiting = 16, 60
        engine.load.free_blocks, engine.load.cached_free_blocks = 7, 20
        engine.load.queued_prefill_tokens, engine.load.waiting_tokens = 3000, 900
        async with gateway(engine) as gw:
            [replica] = gw.replicas
            assert replica.queue() == Queue(
                places=16,
                running=16,
                waiting=60,
                queued_tokens=3000,
                waiting_tokens=900,
                num_blocks=4000,
                free_blocks=27,
                block_tokens=16,
                prefill_s_per_token=replica.load.prefill_us_per_token / 1e6,
                decode_s_per_step=replica.load.decode_us_per_step / 1e6,
            )

    asyncio.run(scenario())


def test_of_an_engine_that_does_not_tell_which_tokens_wait_all_are_taken_to() -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        engine.load.queued_prefill_tokens = 3000
        async with gateway(engine) as gw:
            assert gw.replicas[0].queue().waiting_tokens == 3000

    asyncio.run(scenario())


def test_a_draining_engine_keeps_its_streams_and_gets_nothing_new() -> None:
    async def scenario() -> None:
        def script(_: engine_pb2.GenerateRequest) -> Script:
            return Script(delay_s=0.02, tokens=20)

        engines = [FakeEngine(script=script), FakeEngine(script=script)]
        async with gateway(*engines) as gw:
            generation = await gw.open(prompt("abc"))
            first = next(e for e in engines if e.address == generation.route.engine)
            first.set_stage(engine_pb2.STAGE_DRAINING)
            await until(lambda: sum(r.ready for r in gw.replicas) == 1)
            for _ in range(4):
                other = await gw.open(prompt("abc"))
                assert other.route.engine != first.address
                await other.aclose()
            seed = first.requests[0].sampling.seed
            text = "".join([d.text async for d in generation])
            assert text == "".join(chr(token_at(b"abc", seed, 0, i)) for i in range(20))

    asyncio.run(scenario())


def test_a_damaged_card_keeps_the_engine_out() -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        engine.card.files[0].blake2b = b"0" * 16
        async with gateway(engine, wait=False) as gw:
            await until(lambda: gw.replicas[0].stage == engine_pb2.STAGE_READY)
            await asyncio.sleep(0.2)
            assert not gw.replicas[0].ready

    asyncio.run(scenario())


def test_an_unreadable_tokenizer_keeps_the_engine_out_and_the_gateway_up() -> None:
    async def scenario() -> None:
        engine = FakeEngine(files={"tokenizer.json": b"{}"})
        async with gateway(engine, FakeEngine(), wait=False) as gw:
            await until(lambda: gw.replicas[1].ready)
            await asyncio.sleep(0.3)
            assert not gw.replicas[0].ready
            assert await gw.text(prompt("abc"))

    asyncio.run(scenario())


def test_stages_have_words_also_unknown_ones() -> None:
    assert stage_word(engine_pb2.STAGE_WARMING) == "warming"
    assert stage_word(engine_pb2.STAGE_UNSPECIFIED) == "unreachable"
    assert stage_word(99) == "99"  # type: ignore[arg-type]
