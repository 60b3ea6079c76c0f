import asyncio

import pytest
import structlog
from tests.gateway.asking import FULL, always, by_attempt, expected, seeded
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import gateway, prompt, until
from tests.gateway.script import Script

from octavo.gateway.attempts import MAX_MESSAGE_BYTES
from octavo.v1 import engine_pb2
from octavo.v1.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    DRAINING,
    INVALID_VALUE,
    QUEUE_FULL,
    REQUEST_TOO_LARGE,
    OctavoError,
)


def test_an_answer_comes_whole_and_its_record_is_finished() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine()) as gw:
            generation = await gw.open(seeded("hello " * 20, max_tokens=12))
            text = "".join([d.text async for d in generation])
            assert text == expected("hello " * 20, 5, 12)
            record = await gw.records.get(generation.id)
            assert record is not None
            assert record["state"] == "finished"
            assert record["prompt_tokens"] == 120
            assert record["output_tokens"] == 12
            assert record["finish_reasons"] == ["length"]
            assert record["engine"] == gw.replicas[0].name
            gw.check_idle()
            assert gw.metric("output_tokens_total", model="tiny") == 12

    asyncio.run(scenario())


def test_all_choices_arrive_and_usage_comes_with_the_last_delta() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine()) as gw:
            generation = await gw.open(seeded("abc", n=3, max_tokens=4))
            deltas = [d async for d in generation]
            for choice in range(3):
                text = "".join(d.text for d in deltas if d.choice == choice)
                assert text == expected("abc", 5, 4, choice)
            assert [d.HasField("usage") for d in deltas] == [False] * 11 + [True]
            assert deltas[-1].usage.output_tokens == 12
            gw.check_idle()

    asyncio.run(scenario())


def test_an_unset_seed_is_drawn_once_for_all_attempts() -> None:
    async def scenario() -> None:
        engines = [FakeEngine(script=always(Script(die_after=0))) for _ in range(2)]
        async with gateway(*engines) as gw:
            with pytest.raises(OctavoError):
                await gw.text(prompt("abc"))
            sent = [r for e in engines for r in e.requests]
            assert sorted(r.attempt for r in sent) == [0, 1]
            assert len({r.sampling.seed for r in sent}) == 1
            assert sent[0].sampling.HasField("seed")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (prompt("a" * 5000), CONTEXT_LENGTH_EXCEEDED),
        (prompt("a", sampling=engine_pb2.Sampling(temperature=9)), INVALID_VALUE),
        (
            prompt("\x7f" * (MAX_MESSAGE_BYTES + 1), max_tokens=1),
            REQUEST_TOO_LARGE,
        ),
    ],
    ids=["too long", "temperature", "too large for the session"],
)
def test_a_bad_request_never_reaches_an_engine(
    request_: engine_pb2.GenerateRequest, kind: object
) -> None:
    async def scenario() -> None:
        long = len(request_.token_ids.ids) > MAX_MESSAGE_BYTES
        size = 2**22 if long else 4096
        engine = FakeEngine(max_model_len=size, num_blocks=size)
        async with gateway(engine) as gw:
            with pytest.raises(OctavoError) as caught:
                await gw.open(request_)
            assert caught.value.kind is kind
            assert not engine.requests
            gw.check_idle()

    asyncio.run(scenario())


def test_a_full_engine_is_passed_over_for_the_next() -> None:
    async def scenario() -> None:
        engines = [FakeEngine(script=by_attempt(Script(refuse=FULL), Script())) for _ in range(2)]
        async with gateway(*engines) as gw:
            assert await gw.text(seeded("abc", max_tokens=3)) == expected("abc", 5, 3)
            assert sorted(len(e.requests) for e in engines) == [1, 1]
            assert gw.metric("retries_total", reason="queue_full") == 1
            gw.check_idle()

    asyncio.run(scenario())


def test_when_all_engines_are_full_the_caller_learns_when_to_come_back() -> None:
    async def scenario() -> None:
        engines = [FakeEngine(script=always(Script(refuse=FULL))) for _ in range(3)]
        async with gateway(*engines) as gw:
            with pytest.raises(OctavoError) as caught:
                await gw.open(prompt("abc"))
            assert caught.value.kind is QUEUE_FULL
            assert caught.value.retry_after_ms == 30_000
            assert [len(e.requests) for e in engines] == [1, 1, 1]
            gw.check_idle()

    asyncio.run(scenario())


def test_an_exhausted_budget_stops_retries() -> None:
    async def scenario() -> None:
        engines = [FakeEngine(script=always(Script(refuse=FULL))) for _ in range(2)]
        async with gateway(*engines) as gw:
            while gw.dispatcher.shared.budget.take():
                pass
            with pytest.raises(OctavoError):
                await gw.open(prompt("abc"))
            assert sum(len(e.requests) for e in engines) == 1

    asyncio.run(scenario())


def test_an_engine_that_drains_costs_no_retry() -> None:
    async def scenario() -> None:
        drains = OctavoError(DRAINING, retry_after_ms=1000)
        engines = [FakeEngine(script=lambda _: Script(refuse=drains)), FakeEngine()]
        async with gateway(*engines) as gw:
            budget = gw.dispatcher.shared.budget
            while budget.take():
                pass
            for i in range(4):
                assert await gw.text(prompt(f"{i} abc", max_tokens=3))
            assert len(engines[0].requests) > 0

    asyncio.run(scenario())


def test_a_refusal_for_the_requests_own_fault_is_final() -> None:
    async def scenario() -> None:
        refusal = OctavoError(INVALID_VALUE, param="prompt", reason="is cursed")
        engines = [FakeEngine(script=always(Script(refuse=refusal))) for _ in range(2)]
        async with gateway(*engines) as gw:
            with pytest.raises(OctavoError) as caught:
                await gw.open(prompt("abc"))
            assert caught.value.kind is INVALID_VALUE
            assert caught.value.param == "prompt"
            assert sum(len(e.requests) for e in engines) == 1

    asyncio.run(scenario())


def test_sixteen_cold_prompts_spread_evenly_over_four_idle_engines() -> None:
    async def scenario() -> None:
        engines = [FakeEngine(script=always(Script(tokens=1))) for _ in range(4)]
        async with gateway(*engines) as gw:
            texts = [f"{i:02d} " * 100 for i in range(16)]
            await asyncio.gather(*(gw.text(prompt(t)) for t in texts))
            assert [len(e.requests) for e in engines] == [4, 4, 4, 4]
            assert all(len(e.messages) == 1 for e in engines), "one message a turn of the loop"
            gw.check_idle()

    asyncio.run(scenario())


def test_a_burst_of_equal_cold_prompts_stays_where_it_is_computed() -> None:
    async def scenario() -> None:
        engines = [FakeEngine(script=always(Script(tokens=1))) for _ in range(4)]
        async with gateway(*engines) as gw:
            opened = await asyncio.gather(*(gw.open(prompt("same " * 300)) for _ in range(4)))
            hits = [g.route.hit_tokens for g in opened]
            assert sum(h > 0 for h in hits) >= 3
            for generation in opened:
                await generation.aclose()

    asyncio.run(scenario())


def test_a_warm_prefix_is_found_and_left_when_its_engine_is_busy() -> None:
    async def scenario() -> None:
        engines = [FakeEngine(), FakeEngine()]
        async with gateway(*engines) as gw:
            text = "prefix " * 150
            await gw.text(prompt(text, max_tokens=1))
            warm = next(i for i, e in enumerate(engines) if e.requests)
            await until(lambda: len(gw.replicas[warm].index) == len(text) // 16)
            again = await gw.open(prompt(text + "x", max_tokens=1))
            assert again.route.engine == engines[warm].address
            assert again.route.hit_tokens == len(text) // 16 * 16
            assert again.route.runner_up == engines[1 - warm].address
            assert again.route.runner_up_seconds is not None
            assert again.route.seconds < again.route.runner_up_seconds
            [last] = [d async for d in again]
            assert last.usage.cached_tokens == again.route.hit_tokens
            engines[warm].load.queued_prefill_tokens = 50_000
            engines[warm].send_state()
            await until(lambda: gw.replicas[warm].load.queued_prefill_tokens > 0)
            busy = await gw.open(prompt(text + "y", max_tokens=1))
            assert busy.route.engine == engines[1 - warm].address
            await busy.aclose()

    asyncio.run(scenario())


def test_prompt_logprobs_expect_nothing_of_the_cache() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine()) as gw:
            text = "prefix " * 50
            await gw.text(prompt(text, max_tokens=1))
            await until(lambda: len(gw.replicas[0].index) > 0)
            generation = await gw.open(prompt(text, max_tokens=1, prompt_logprobs=1))
            assert generation.route.hit_tokens == 0
            await generation.aclose()

    asyncio.run(scenario())


def test_a_draining_gateway_finishes_what_runs_and_what_its_connections_still_bring() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine(script=always(Script(delay_s=0.01)))) as gw:
            generation = await gw.open(seeded("abc", max_tokens=10))
            gw.fleet.drain()
            late = await gw.open(seeded("late", max_tokens=10))
            assert "".join([d.text async for d in generation]) == expected("abc", 5, 10)
            assert "".join([d.text async for d in late]) == expected("late", 5, 10)

    asyncio.run(scenario())


def test_a_request_that_is_never_opened_leaves_a_line_and_a_count() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine()) as gw:
            with structlog.testing.capture_logs() as lines:
                error = OctavoError(INVALID_VALUE, param="n", reason="is odd")
                gw.dispatcher.refused(error, id="f" * 32, endpoint="completions")
            assert [{k: v for k, v in line.items() if k != "log_level"} for line in lines] == [
                {
                    "event": "request_refused",
                    "id": "f" * 32,
                    "code": "OCT-1002",
                    "endpoint": "completions",
                    "status": 400,
                }
            ]
            labels = {"model": "", "endpoint": "completions", "status": "400"}
            assert gw.metric("requests_total", finish="OCT-1002", **labels) == 1
            gw.check_idle()

    asyncio.run(scenario())
