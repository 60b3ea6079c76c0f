import asyncio
import random

import pytest
from tests.gateway.asking import FULL, always, by_attempt, expected, read_into, seeded
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import Gateway, gateway, prompt, until
from tests.gateway.script import Script

from octavo.gateway import generation as module
from octavo.gateway import retry_budget
from octavo.gateway.attempts import Loss
from octavo.gateway.dispatch import Call, Generation, ResumePolicy
from octavo.gateway.generation import MAX_ATTEMPTS
from octavo.v1 import engine_pb2
from octavo.v1.errors import (
    DEADLINE_EXCEEDED,
    DRAINING,
    ENGINE_FAILURE,
    NO_ENGINE,
    QUEUE_FULL,
    REQUEST_FAILED,
    SLOW_CLIENT,
    OctavoError,
)


def test_an_engine_that_dies_before_the_first_token_costs_nothing_but_time() -> None:
    async def scenario() -> None:
        engines = [FakeEngine(script=by_attempt(Script(die_after=0), Script())) for _ in range(2)]
        async with gateway(*engines) as gw:
            generation = await gw.open(seeded("abc", max_tokens=6))
            assert "".join([d.text async for d in generation]) == expected("abc", 5, 6)
            second = max((r for e in engines for r in e.requests), key=lambda r: r.attempt)
            assert (second.attempt, second.deaths) == (1, 1)
            record = await gw.records.get(generation.id)
            assert record is not None
            assert (record["attempts"], record["deaths"]) == (2, 1)
            gw.check_idle()

    asyncio.run(scenario())


def test_a_request_that_kills_engines_is_given_up_after_two() -> None:
    async def scenario() -> None:
        engines = [FakeEngine(script=always(Script(die_after=0))) for _ in range(4)]
        async with gateway(*engines) as gw:
            with pytest.raises(OctavoError) as caught:
                await gw.text(prompt("poison"))
            assert caught.value.kind is REQUEST_FAILED
            assert sum(len(e.requests) for e in engines) == 2
            with pytest.raises(OctavoError) as again:
                await gw.text(prompt("poison"))
            assert again.value.kind is REQUEST_FAILED
            assert sum(len(e.requests) for e in engines) == 2, "it is in quarantine"
            gw.check_idle()

    asyncio.run(scenario())


def test_without_another_engine_the_loss_is_an_error_after_all_that_came() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=always(Script(die_after=4, delay_s=0.01)))
        async with gateway(engine) as gw:
            generation = await gw.open(seeded("abc", max_tokens=60))
            parts: list[str] = []
            with pytest.raises(OctavoError) as caught:
                await read_into(generation, parts)
            assert caught.value.kind is ENGINE_FAILURE
            got = "".join(parts)
            assert len(got) >= 1
            assert got == expected("abc", 5, len(got))
            record = await gw.records.get(generation.id)
            assert record is not None
            assert (record["state"], record["error"]) == ("failed", "OCT-2003")
            assert record["output_tokens"] == len(got)
            gw.check_idle()

    asyncio.run(scenario())


def test_repeated_deltas_are_delivered_once_and_counted() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine(script=always(Script(repeat=True)))) as gw:
            assert await gw.text(seeded("abc", max_tokens=9)) == expected("abc", 5, 9)
            await until(lambda: gw.metric("dropped_deltas_total", reason="attempt") == 1)
            assert gw.metric("dropped_deltas_total", reason="position") == 8

    asyncio.run(scenario())


def test_a_hole_in_the_stream_is_an_error_and_never_a_clean_end() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=always(Script(skip_at=5, delay_s=0.01)))
        async with gateway(engine) as gw:
            with pytest.raises(OctavoError) as caught:
                await gw.text(seeded("abc", max_tokens=9))
            assert caught.value.kind is ENGINE_FAILURE
            await until(lambda: len(engine.cancelled) == MAX_ATTEMPTS)
            assert gw.metric("retries_total", reason="tokens_lost") == MAX_ATTEMPTS

    asyncio.run(scenario())


def test_an_error_of_the_engine_keeps_its_own_words() -> None:
    async def scenario() -> None:
        fault = (2, OctavoError(REQUEST_FAILED))
        async with gateway(FakeEngine(script=always(Script(fail_after=fault)))) as gw:
            with pytest.raises(OctavoError) as caught:
                await gw.text(seeded("abc", max_tokens=9))
            assert caught.value.kind is REQUEST_FAILED
            gw.check_idle()

    asyncio.run(scenario())


def test_an_abort_that_nobody_asked_for_is_an_error() -> None:
    async def scenario() -> None:
        script = Script(hand_over_after=0)
        async with gateway(FakeEngine(script=always(script))) as gw:
            with pytest.raises(OctavoError) as caught:
                await gw.text(prompt("abc"))
            assert caught.value.kind is ENGINE_FAILURE

    asyncio.run(scenario())


def test_closing_in_mid_stream_cancels_within_one_turn_and_on_the_engine() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=always(Script(delay_s=0.02)))
        async with gateway(engine) as gw:
            generation = await gw.open(prompt("abc", max_tokens=500))
            await anext(generation)
            await generation.aclose()
            gw.check_idle()
            await until(lambda: engine.num_running == 0, 1.0)
            assert engine.cancelled == [(generation.id, 0)]
            record = await gw.records.get(generation.id)
            assert record is not None
            assert record["state"] == "cancelled"
            await generation.aclose()
            assert gw.metric("client_aborts_total", endpoint="chat") == 1
            assert [d async for d in generation] == []

    asyncio.run(scenario())


def test_a_client_that_leaves_before_the_first_token_frees_the_engine() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=always(Script(first_delay_s=30)))
        async with gateway(engine) as gw:
            generation = await gw.open(prompt("abc"))
            reading = asyncio.ensure_future(anext(generation))
            await asyncio.sleep(0.05)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await generation.aclose()
            gw.check_idle()
            await until(lambda: engine.num_running == 0, 1.0)

    asyncio.run(scenario())


def test_a_client_that_leaves_before_acceptance_frees_the_engine() -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=always(Script(answer=False)))
        async with gateway(engine) as gw:
            opening = asyncio.create_task(gw.open(prompt("abc")))
            await until(lambda: engine.num_running == 1)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            gw.check_idle()
            await until(lambda: engine.num_running == 0, 1.0)

    asyncio.run(scenario())


def test_an_engine_that_never_answers_is_left_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ACCEPT_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        engines = [FakeEngine(script=by_attempt(Script(answer=False), Script())) for _ in range(2)]
        async with gateway(*engines) as gw:
            assert await gw.text(seeded("abc", max_tokens=3)) == expected("abc", 5, 3)
            assert gw.metric("retries_total", reason="no_answer") == 1
            gw.check_idle()
            await until(lambda: sum(e.num_running for e in engines) == 0)

    asyncio.run(scenario())


def test_time_of_earlier_attempts_is_taken_from_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ACCEPT_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        engines = [FakeEngine(script=by_attempt(Script(answer=False), Script())) for _ in range(2)]
        async with gateway(*engines) as gw:
            await gw.text(prompt("abc", remaining_ms=10_000))
            second = max((r for e in engines for r in e.requests), key=lambda r: r.attempt)
            assert 5_000 < second.remaining_ms <= 9_800

    asyncio.run(scenario())


def test_a_reader_that_sleeps_is_cut_off_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.gateway.attempts.MAX_WAITING_BYTES", 2_000)

    async def scenario() -> None:
        engine = FakeEngine(script=always(Script(delay_s=0.0005)))
        async with gateway(engine) as gw:
            generation = await gw.open(prompt("abc", max_tokens=1000))
            await until(lambda: engine.cancelled != [])
            with pytest.raises(OctavoError) as caught:
                await read_into(generation, [])
            assert caught.value.kind.name == "slow_client"
            gw.check_idle()

    asyncio.run(scenario())


def test_no_engine_left_says_so() -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        async with gateway(engine) as gw:
            model = gw.fleet.model("tiny")
            await engine.kill()
            await until(lambda: not gw.replicas[0].ready)
            with pytest.raises(OctavoError) as caught:
                await gw.dispatcher.open(Call(model=model, request=prompt("abc")))
            assert caught.value.kind is NO_ENGINE
            assert caught.value.retry_after_ms > 0
            gw.check_idle()

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_nothing_stays_behind(seed: int) -> None:
    chance = random.Random(seed)

    def script(_: engine_pb2.GenerateRequest) -> Script:
        return Script(
            refuse=FULL if chance.random() < 0.1 else None,
            delay_s=chance.choice([0, 0.002]),
            first_delay_s=chance.choice([0, 0.02]),
            repeat=chance.random() < 0.2,
            skip_at=2 if chance.random() < 0.1 else None,
            fail_after=(1, OctavoError(REQUEST_FAILED)) if chance.random() < 0.1 else None,
        )

    async def client(gw: Gateway, number: int) -> str:
        await asyncio.sleep(chance.random() * 0.5)
        try:
            generation = await gw.open(prompt(f"{number} " * 30, max_tokens=20, n=1 + number % 3))
        except OctavoError as error:
            return error.kind.name
        patience, parts = chance.randrange(60), list[str]()
        try:
            while len(parts) < patience and (delta := await anext(generation, None)):
                parts.append(delta.text)
        except OctavoError as error:
            return error.kind.name
        finally:
            await generation.aclose()
        return "ended"

    async def scenario() -> None:
        engines = [FakeEngine(script=script) for _ in range(3)]
        async with gateway(*engines) as gw:
            clients = [asyncio.create_task(client(gw, i)) for i in range(60)]
            for engine in engines[:2]:
                await asyncio.sleep(0.15)
                await engine.restart()
            for leaver in chance.sample(clients, 10):
                leaver.cancel()
            ends = await asyncio.gather(*clients, return_exceptions=True)
            strange = [e for e in ends if isinstance(e, Exception)]
            assert not strange
            assert ends.count("ended") > 10
            gw.check_idle()
            await until(lambda: all(r.ready for r in gw.replicas), 10)
            await until(lambda: not any(e.num_running for e in engines))
            for replica, engine in zip(gw.replicas, engines, strict=True):
                await until(lambda r=replica, e=engine: r.index.held() == set(e.blocks))  # type: ignore[misc]
            for engine in engines:
                engine.script = always(Script())
            assert await gw.text(prompt("and it still works"))

    asyncio.run(scenario())


@pytest.mark.parametrize("answered", [True, False], ids=["running", "not accepted yet"])
def test_what_runs_when_the_drain_ends_fails_with_its_reason(answered: bool) -> None:
    async def scenario() -> None:
        script = Script(answer=answered, first_delay_s=60)
        engines = [FakeEngine(script=always(script)) for _ in range(2)]
        async with gateway(*engines) as gw:
            request = seeded("abc")
            reading = asyncio.create_task(gw.text(request))
            await until(lambda: any(e.requests for e in engines))
            await asyncio.sleep(0.05)
            gw.dispatcher.abort()
            with pytest.raises(OctavoError) as caught:
                await reading
            assert caught.value.kind is DRAINING
            assert gw.metric("retries_total", reason="draining") == 0
            labels = {"model": "tiny", "endpoint": "chat"}
            assert gw.metric("requests_total", status="503", finish="OCT-2005", **labels) == 1
            assert sum(len(e.requests) for e in engines) == 1
            gw.check_idle()

    asyncio.run(scenario())


def test_a_failure_from_outside_reaches_a_reader_that_comes_late() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine(script=always(Script(delay_s=0.01)))) as gw:
            generation = await gw.open(seeded("abc", max_tokens=50))
            await anext(generation)
            generation.fail(OctavoError(SLOW_CLIENT, waiting=9, limit=8))
            with pytest.raises(OctavoError) as caught:
                await anext(generation)
            assert caught.value.kind is SLOW_CLIENT
            record = await gw.records.get(generation.id)
            assert record is not None
            assert (record["state"], record["error"]) == ("failed", "OCT-2008")
            gw.check_idle()

    asyncio.run(scenario())


def test_a_refusal_by_the_only_engine_is_no_retry() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine(script=always(Script(refuse=FULL)))) as gw:
            with pytest.raises(OctavoError) as caught:
                await gw.open(seeded("abc"))
            assert caught.value.kind is QUEUE_FULL
            assert gw.metric("retries_total", reason="queue_full") == 0
            taken = 0
            while gw.dispatcher.shared.budget.take():
                taken += 1
            assert taken == int(retry_budget.MINIMUM)

    asyncio.run(scenario())


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("cut", [1, 4, 11])
def test_another_engine_goes_on_where_the_first_was_lost(n: int, cut: int) -> None:
    async def scenario() -> None:
        script = by_attempt(Script(die_after=cut, delay_s=0.01), Script())
        engines = [FakeEngine(script=script) for _ in range(2)]
        async with gateway(*engines) as gw:
            generation = await gw.open(seeded("abc", max_tokens=12, n=n, fairness_key="k"))
            parts: list[list[str]] = [[] for _ in range(n)]
            deltas = [delta async for delta in generation]
            for delta in deltas:
                parts[delta.choice].append(delta.text)
            assert ["".join(p) for p in parts] == [expected("abc", 5, 12, i) for i in range(n)]
            assert deltas[-1].usage.output_tokens == 12 * n
            assert not deltas[-1].usage.inexact
            resumed = max((r for e in engines for r in e.requests), key=lambda r: r.attempt)
            assert (resumed.attempt, resumed.deaths) == (1, 1)
            assert resumed.fairness_key == "k"
            assert [r.choice for r in resumed.resumes] in (list(range(n)), [] if cut == 1 else None)
            assert all(r.chars_sent == len(r.output_ids) <= cut for r in resumed.resumes)
            record = await gw.records.get(generation.id)
            assert record is not None
            assert record["state"] == "finished"
            # The first token may be lost with the engine, before or after its word that it begins.
            assert record["resumes"] in ((1,) if resumed.resumes else (0, 1))
            gw.check_idle()

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["exact", "any", "never"])
def test_only_equal_numerics_go_on_unless_the_policy_says_otherwise(mode: str) -> None:
    async def scenario() -> None:
        script = by_attempt(Script(die_after=4, delay_s=0.01), Script())
        engines = [FakeEngine(script=script, numerics_id=name) for name in ("one", "two")]
        async with gateway(*engines, resume=ResumePolicy(mode=mode, wait_s=0.0)) as gw:
            generation = await gw.open(seeded("abc", max_tokens=9))
            if mode == "any":
                deltas = [delta async for delta in generation]
                assert "".join(d.text for d in deltas) == expected("abc", 5, 9)
                assert deltas[-1].usage.inexact
            else:
                with pytest.raises(OctavoError) as caught:
                    [delta async for delta in generation]
                assert caught.value.kind is ENGINE_FAILURE
            gw.check_idle()

    asyncio.run(scenario())


def test_an_answer_waits_for_the_only_engine_to_come_back() -> None:
    async def scenario() -> None:
        script = by_attempt(Script(die_after=4, delay_s=0.01), Script())
        engine = FakeEngine(script=script)
        async with gateway(engine, resume=ResumePolicy(wait_s=30.0)) as gw:
            generation = await gw.open(seeded("abc", max_tokens=9))
            text = asyncio.create_task(_text(generation))
            await until(lambda: not gw.replicas[0].ready)
            await engine.restart()
            assert await text == expected("abc", 5, 9)
            assert gw.metrics.registry.get_sample_value("octavo_gateway_resume_seconds_count") == 1

    asyncio.run(scenario())


async def _text(generation: Generation) -> str:
    return "".join([delta.text async for delta in generation])


def test_a_drained_engine_hands_over_and_nothing_held_back_is_shown() -> None:
    async def scenario() -> None:
        script = by_attempt(Script(hand_over_after=4), Script())
        engines = [FakeEngine(script=script) for _ in range(2)]
        async with gateway(*engines) as gw:
            generation = await gw.open(seeded("abc", max_tokens=9))
            assert await _text(generation) == expected("abc", 5, 9)
            resumed = max((r for e in engines for r in e.requests), key=lambda r: r.attempt)
            assert (resumed.attempt, resumed.deaths) == (1, 0), "nobody died"
            assert gw.metric("retries_total", reason="handed_over") == 1
            gw.check_idle()

    asyncio.run(scenario())


def test_suspects_are_resumed_one_after_the_other() -> None:
    """A poison among them must not take the others along once more."""

    def script(request: engine_pb2.GenerateRequest) -> Script:
        if request.attempt == 0:
            return Script(stop_after=3)
        return Script(first_delay_s=0.05)

    async def scenario() -> None:
        first, second = (FakeEngine(script=script) for _ in range(2))
        second.set_stage(engine_pb2.STAGE_LOADING)
        async with gateway(first, second, wait=False, resume=ResumePolicy()) as gw:
            await until(lambda: gw.replicas[0].ready)
            opened = [await gw.open(seeded(f"{i} abc", max_tokens=6)) for i in range(4)]
            streams = [asyncio.create_task(_text(generation)) for generation in opened]
            second.set_stage(engine_pb2.STAGE_READY)
            await until(lambda: gw.replicas[1].ready)
            await first.kill()
            await until(lambda: len(second.requests) == 1)
            await asyncio.sleep(0.02)
            assert len(second.requests) == 1, "the others wait for its next token"
            texts = await asyncio.gather(*streams)
            assert texts == [expected(f"{i} abc", 5, 6) for i in range(4)]
            gw.check_idle()

    asyncio.run(scenario())


@pytest.mark.parametrize("answered", [True, False], ids=["running", "not accepted"])
def test_a_deadline_holds_also_when_the_engine_is_stuck(answered: bool) -> None:
    async def scenario() -> None:
        engine = FakeEngine(script=always(Script(answer=answered, stop_after=1)))
        async with gateway(engine) as gw:
            began = asyncio.get_running_loop().time()
            with pytest.raises(OctavoError) as caught:
                await gw.text(seeded("abc", max_tokens=9, remaining_ms=200))
            assert caught.value.kind is DEADLINE_EXCEEDED
            assert asyncio.get_running_loop().time() - began < 2.0
            await until(lambda: len(engine.cancelled) == 1)
            gw.check_idle()

    asyncio.run(scenario())


def test_silence_is_no_proof_against_a_request() -> None:
    """A cut cable and a crash must not brand whoever was there."""

    async def scenario() -> None:
        engines = [FakeEngine(script=by_attempt(Script(stop_after=1), Script())) for _ in range(3)]
        async with gateway(*engines, resume=ResumePolicy()) as gw:
            generation = await gw.open(seeded("abc", max_tokens=6))
            text = asyncio.create_task(_text(generation))
            for loss in (Loss.BROKEN, Loss.SILENT):
                await until(lambda: sum(r.table.in_flight for r in gw.replicas) == 1)
                (replica,) = [r for r in gw.replicas if r.table.in_flight]
                replica.table.lose_all("cut off", loss)
                await asyncio.sleep(0)
            assert await text == expected("abc", 5, 6)

    asyncio.run(scenario())
