"""Keyed requests through the app, with a dispatcher that follows a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import pytest
from tests.bounds import EVENTUALLY_S
from tests.gateway.api.scripted import Response, Script, Step, World, says
from tests.gateway.harness import until
from tests.runtime.smollm2_files import tokenizer

from octavo.gateway import once
from octavo.gateway.claims import Claim
from octavo.gateway.dispatch import Call
from octavo.gateway.idempotency import Entry, State
from octavo.v1 import engine_pb2
from octavo.v1.errors import ENGINE_FAILURE, QUEUE_FULL, OctavoError

CHAT = "/v1/chat/completions"
STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


async def ask(world: World, key: str = "k", *, text: str = "hi", **more: Any) -> Response:
    body = more.pop("body", {})
    path = more.pop("path", CHAT)
    given: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    if path != CHAT:
        given = {"prompt": text}
    data = json.dumps({"model": "smollm2", **given, **body}).encode()
    headers = {"idempotency-key": key, **more.pop("headers", {})}
    return await world.ask("POST", path, data, headers=headers, **more)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    tokenizer()  # takes seconds the first time, which must not count

    async def bounded() -> None:
        async with asyncio.timeout(EVENTUALLY_S):
            await scenario()

    asyncio.run(bounded())


def paced(text: str, pause_s: float = 0.01) -> Script:
    def script(call: Call) -> Iterable[Step]:
        for step in says(text)(call):
            yield pause_s
            yield step

    return script


def has(text: bytes) -> Callable[[Response], bool]:
    return lambda response: text in response.body


def count(world: World, outcome: str) -> float:
    sample = "octavo_gateway_idempotent_requests_total"
    return world.metrics.registry.get_sample_value(sample, {"outcome": outcome}) or 0.0


LONG = "one two three four five six seven eight nine ten"


@STREAMS
def test_a_repeated_request_gets_the_same_bytes_without_a_second_generation(stream: bool) -> None:
    async def scenario() -> None:
        world = World(says(LONG, cached=16))
        body = {"stream": stream, "logprobs": True, "top_logprobs": 2}
        first, second = [await ask(world, body=body) for _ in range(2)]
        assert len(world.dispatcher.calls) == 1
        assert (first.status, second.status) == (200, 200)
        assert first.body == second.body
        assert second.complete
        replayed = second.headers.pop("idempotency-replayed")
        assert replayed == "true"
        for headers in (first.headers, second.headers):
            headers.pop("server-timing")
        assert first.headers == second.headers
        world.once.check_integrity()

    run(scenario)


@STREAMS
def test_five_at_the_same_time_share_one_generation(stream: bool) -> None:
    async def scenario() -> None:
        world = World(paced(LONG))
        answers = await asyncio.gather(*(ask(world, body={"stream": stream}) for _ in range(5)))
        assert len(world.dispatcher.calls) == 1
        assert len({a.body for a in answers}) == 1
        assert all(a.complete and a.status == 200 for a in answers)
        assert [a.headers.get("idempotency-replayed") for a in answers].count("true") == 4
        assert len({a.headers["x-request-id"] for a in answers}) == 1

    run(scenario)


def test_a_retry_finds_the_stream_that_its_client_had_left() -> None:
    async def scenario() -> None:
        world = World(paced(LONG))
        whole = await ask(world, "undisturbed", body={"stream": True, "seed": 5})
        left = await ask(world, body={"stream": True, "seed": 5}, leaves=has(b"three"))
        assert not left.complete
        retry = await ask(world, body={"stream": True, "seed": 5})
        assert len(world.dispatcher.calls) == 2
        assert retry.body.startswith(left.body)
        assert retry.complete
        texts = [
            "".join(c["choices"][0]["delta"].get("content", "") for c in answer.chunks)
            for answer in (whole, retry)
        ]
        assert texts == [LONG, LONG]
        assert len(retry.chunks) == len(whole.chunks)

    run(scenario)


@STREAMS
def test_a_generation_without_a_client_goes_on_to_its_end(stream: bool) -> None:
    async def scenario() -> None:
        world = World(paced(LONG, 0.05))
        left = await ask(world, body={"stream": stream}, leave_after_s=0.2)
        assert not left.complete
        assert world.once.num_abandoned == 1
        await until(lambda: world.once.num_abandoned == 0)
        assert world.dispatcher.generations[0].closed
        retry = await ask(world, body={"stream": stream})
        assert LONG.split()[-1].encode() in retry.body
        assert len(world.dispatcher.calls) == 1

    run(scenario)


def test_nobody_is_waited_for_longer_than_the_grace() -> None:
    def stalls(call: Call) -> Iterable[Step]:
        yield engine_pb2.Delta(text="a", token_ids=[5])
        yield 60.0

    async def scenario() -> None:
        world = World(stalls, idempotency_grace_s=0.3)
        await ask(world, body={"stream": True}, leaves=has(b"a"))
        assert not world.dispatcher.generations[0].closed
        await until(lambda: world.dispatcher.generations[0].closed)
        world.dispatcher.script = says(LONG)
        retry = await ask(world, body={"stream": True})
        assert retry.complete
        first, second = world.dispatcher.calls
        assert first.request.sampling.seed == second.request.sampling.seed
        assert first.id == second.id == retry.headers["x-request-id"]
        assert first.request.attempt < second.request.attempt
        assert "idempotency-replayed" not in retry.headers
        world.once.check_integrity()

    run(scenario)


def test_a_client_that_is_back_in_time_stops_the_grace() -> None:
    async def scenario() -> None:
        world = World(paced(LONG, 0.1), idempotency_grace_s=0.5)
        await ask(world, body={"stream": True}, leaves=has(b"two"))
        retry = await ask(world, body={"stream": True})
        assert retry.complete
        assert len(world.dispatcher.calls) == 1

    run(scenario)


def test_abandoned_generations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "MAX_ABANDONED", 2)

    async def scenario() -> None:
        world = World(lambda _: [60.0])
        await asyncio.gather(*(ask(world, f"k{i}", leave_after_s=0.3) for i in range(4)))
        await until(lambda: sum(g.closed for g in world.dispatcher.generations) == 2)
        assert world.once.num_abandoned == 2
        assert [g.closed for g in world.dispatcher.generations] == [True, True, False, False]
        world.once.check_integrity()
        await world.once.close(0.0)

    run(scenario)


@pytest.mark.parametrize(
    "other", [{"text": "bye"}, {"body": {"stream": True}}, {"path": "/v1/completions"}], ids=str
)
def test_another_request_under_the_same_key_is_refused(other: dict[str, Any]) -> None:
    async def scenario() -> None:
        world = World()
        assert (await ask(world)).status == 200
        response = await ask(world, **other)
        assert response.status == 422
        assert response.error["code"] == "idempotency_key_reused"
        assert response.error["param"] == "Idempotency-Key"
        assert len(world.dispatcher.calls) == 1
        assert [r[0] for r in world.dispatcher.refusals] == ["idempotency_key_reused"]

    run(scenario)


@STREAMS
def test_a_refused_request_does_not_use_its_key_up(stream: bool) -> None:
    full = OctavoError(QUEUE_FULL, queued=9, limit=9, unit="requests", retry_after_ms=2100)

    async def scenario() -> None:
        world = World(lambda _: [full])
        first = await ask(world, body={"stream": stream})
        assert (first.status, first.headers["retry-after"]) == (503, "3")
        world.dispatcher.script = says(LONG)
        assert (await ask(world, body={"stream": stream})).status == 200
        assert (await ask(world, "other")).status == 200
        world.once.check_integrity()

    run(scenario)


def test_a_key_that_failed_may_be_used_for_another_body() -> None:
    async def scenario() -> None:
        world = World(lambda _: [OctavoError(ENGINE_FAILURE)])
        assert (await ask(world)).status == 502
        world.dispatcher.script = says(LONG)
        assert (await ask(world, text="changed")).status == 200
        assert world.dispatcher.calls[0].id != world.dispatcher.calls[1].id

    run(scenario)


def test_a_stream_that_broke_is_generated_again_with_the_same_seed() -> None:
    def breaks(call: Call) -> Iterable[Step]:
        yield 0.01
        yield engine_pb2.Delta(text="one", token_ids=[5])
        yield 0.01
        yield OctavoError(ENGINE_FAILURE)

    async def scenario() -> None:
        world = World(breaks)
        answers = await asyncio.gather(*(ask(world, body={"stream": True}) for _ in range(2)))
        for answer in answers:
            assert answer.chunks[-1]["error"]["code"] == "engine_failure"
            assert not answer.complete
        world.dispatcher.script = says(LONG)
        retry = await ask(world, body={"stream": True})
        assert retry.complete
        assert retry.chunks[0]["id"] == answers[0].chunks[0]["id"]
        assert len({c.request.sampling.seed for c in world.dispatcher.calls}) == 1

    run(scenario)


@STREAMS
def test_errors_name_the_request_that_the_key_stands_for(stream: bool) -> None:
    async def scenario() -> None:
        world = World(lambda _: [0.05, OctavoError(ENGINE_FAILURE)])
        answers = await asyncio.gather(*(ask(world, body={"stream": stream}) for _ in range(2)))
        (call,) = world.dispatcher.calls
        assert [a.headers["x-request-id"] for a in answers] == [call.id, call.id]

    run(scenario)


def test_whoever_joins_an_answer_keeps_its_own_deadline() -> None:
    async def scenario() -> None:
        world = World(paced(LONG, 0.3))
        first = asyncio.create_task(ask(world))
        await until(lambda: world.dispatcher.calls != [])
        second = await ask(world, headers={"x-stainless-read-timeout": "1"})
        assert second.status == 504
        assert (await first).status == 200

    run(scenario)


def test_a_generation_that_just_ends_is_not_kept() -> None:
    async def scenario() -> None:
        world = World(lambda _: [engine_pb2.Delta(text="a", token_ids=[5])])
        assert (await ask(world)).status == 502
        world.dispatcher.script = says(LONG)
        assert (await ask(world)).status == 200

    run(scenario)


def test_an_unexpected_error_frees_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    def crashes(call: Call) -> Iterable[Step]:
        raise ZeroDivisionError

    async def scenario() -> None:
        world = World(crashes)
        assert (await ask(world)).status == 500
        world.dispatcher.script = says(LONG)
        assert (await ask(world)).status == 200
        world.once.check_integrity()

    run(scenario)


class SlowClaims:
    """Looks keys up until it is told, or for another gateway to generate."""

    def __init__(self, *, known: bool = False) -> None:
        self.answers = asyncio.Event()
        self.known = known

    async def acquire(self, wanted: Entry, *, on_wait: Callable[[Entry], None]) -> Claim:
        if self.known:
            on_wait(wanted)
        await self.answers.wait()
        return Claim(entry=wanted)

    async def keep(self, claim: Claim) -> None: ...

    async def settle(self, claim: Claim, state: State, deltas: object) -> None: ...


def test_a_client_that_leaves_while_its_key_is_looked_up_holds_nothing() -> None:
    async def scenario() -> None:
        world, claims = World(lambda _: [60.0]), SlowClaims()
        world.once._claims = cast("Any", claims)
        assert (await ask(world, headers={"x-stainless-read-timeout": "1"})).status == 504
        (answer,) = world.once._running.values()
        assert (answer.num_readers, world.once.num_abandoned) == (0, 0)
        world.once.check_integrity()
        claims.answers.set()
        await until(lambda: world.once.num_abandoned == 1)
        world.once.check_integrity()
        await world.once.close(0.0)

    run(scenario)


def test_a_client_that_leaves_before_all_its_prompts_are_opened_holds_nothing() -> None:
    async def scenario() -> None:
        world = World(lambda _: [60.0])
        body = {"prompt": ["hi"] * 100}
        await ask(world, path="/v1/completions", body=body, leave_after_s=0.0)
        assert len(world.dispatcher.calls) < 100
        assert world.once.num_abandoned == 1
        await world.once.close(0.0)

    run(scenario)


def test_many_prompts_are_opened_one_in_each_turn_of_the_loop() -> None:
    async def scenario() -> None:
        world = World(lambda _: [60.0])
        body = {"prompt": ["hi"] * 50}
        asking = asyncio.create_task(
            ask(world, path="/v1/completions", body=body, leave_after_s=1.0)
        )
        most = before = 0
        while before < 50:
            await asyncio.sleep(0)
            opened = len(world.dispatcher.calls)
            most, before = max(most, opened - before), opened
        assert most == 1
        await asking
        await world.once.close(0.0)

    run(scenario)


def test_several_prompts_are_one_answer() -> None:
    async def scenario() -> None:
        world = World(paced(LONG))
        ask_both: dict[str, Any] = {
            "path": "/v1/completions",
            "body": {"prompt": ["a", "b"], "n": 2},
        }
        first, second = await asyncio.gather(*(ask(world, **ask_both) for _ in range(2)))
        assert first.body == second.body
        assert len(world.dispatcher.calls) == 2
        third = await ask(world, **ask_both)
        assert third.body == first.body
        seeds = [c.request.sampling.seed for c in world.dispatcher.calls]
        assert len(set(seeds)) == 2
        assert [c.id for c in world.dispatcher.calls] == [first.headers["x-request-id"], ""]

    run(scenario)


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "ü", "a\tb"], ids=repr)
def test_what_is_no_key_is_refused(key: str) -> None:
    async def scenario() -> None:
        response = await ask(World(), key)
        assert response.status == 400
        assert response.error["param"] == "Idempotency-Key"

    run(scenario)


@STREAMS
@pytest.mark.parametrize("known", [True, False], ids=["elsewhere", "looked up"])
def test_a_drain_that_ends_tells_whoever_waits_for_another_gateway(
    known: bool, stream: bool
) -> None:
    async def scenario() -> None:
        world = World()
        world.once._claims = cast("Any", SlowClaims(known=known))
        asked = asyncio.create_task(ask(world, body={"stream": stream}))
        await until(lambda: bool(world.once._claiming))
        world.once.abort()
        assert world.dispatcher.aborted
        answer = await asked
        assert b"draining" in answer.body
        assert b"[DONE]" not in answer.body
        world.once.check_integrity()
        await world.once.close(0.0)

    run(scenario)


def test_closing_cuts_off_what_runs_and_keeps_what_has_ended() -> None:
    async def scenario() -> None:
        world = World()
        await ask(world, "ended")
        world.dispatcher.script = lambda _: [60.0]
        running = asyncio.create_task(ask(world, "runs"))
        await until(lambda: len(world.dispatcher.generations) == 2)
        await world.once.close(0.05)
        assert world.dispatcher.generations[1].closed
        assert (await running).error["code"] == "draining"
        world.once.check_integrity()

    run(scenario)
