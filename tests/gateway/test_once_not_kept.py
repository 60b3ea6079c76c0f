"""Keyed answers that are not kept: too large, too old, too many, or memory runs out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.gateway.api.scripted import Response, Script, World, says
from tests.gateway.harness import until
from tests.gateway.test_once import LONG, ask, count, has, paced, run

from octavo.gateway import ended_answers, kept_answer, once


def of_completions(response: Response) -> set[str]:
    return {choice["text"] for choice in response.json["choices"]}


def test_an_answer_too_large_to_be_kept_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answer, "MAX_ANSWER_BYTES", 300)

    async def scenario() -> None:
        world = World(paced(LONG))
        assert (await ask(world, body={"stream": True})).complete
        retry = await ask(world, body={"stream": True})
        assert retry.status == 409
        assert retry.error["code"] == "answer_not_kept"
        assert len(world.dispatcher.calls) == 1
        left = await ask(world, "left", body={"stream": True}, leaves=has(b"ten"))
        assert not left.complete
        await until(lambda: world.dispatcher.generations[1].closed)
        assert (await ask(world, "left", body={"stream": True})).complete
        world.once.check_integrity()

    run(scenario)


def test_an_abandoned_generation_that_becomes_too_large_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_answer, "MAX_ANSWER_BYTES", 300)

    async def scenario() -> None:
        world = World(paced(LONG * 20))
        await ask(world, body={"stream": True}, leaves=has(b"one"))
        await until(lambda: world.dispatcher.generations[0].closed)
        assert count(world, "abandoned") == 1

    run(scenario)


@pytest.mark.parametrize("script", [says(LONG), paced(LONG, 0.0)], ids=["at once", "paced"])
def test_many_prompts_are_whole_though_they_are_too_large_to_be_kept(
    monkeypatch: pytest.MonkeyPatch, script: Script
) -> None:
    monkeypatch.setattr(kept_answer, "MAX_ANSWER_BYTES", 3000)

    async def scenario() -> None:
        world = World(script)
        asked: dict[str, Any] = {"path": "/v1/completions", "body": {"prompt": ["hi"] * 60}}
        first = await ask(world, **asked)
        assert first.status == 200
        assert of_completions(first) == {LONG}
        assert (await ask(world, **asked)).status == 409
        world.once.check_integrity()

    run(scenario)


def test_whoever_joins_just_before_an_answer_is_too_large_gets_all_of_it() -> None:
    async def scenario() -> None:
        world = World(paced(LONG, 0.002))
        body = {"prompt": ["hi"] * 20}
        first = asyncio.create_task(ask(world, path="/v1/completions", body=body))
        await until(lambda: len(world.dispatcher.generations) == 20)
        (answer,) = world.once._running.values()
        second = asyncio.create_task(ask(world, path="/v1/completions", body=body))
        alone = answer.num_readers
        await until(lambda: answer.num_readers > alone)
        answer.drop()
        for response in (await first, await second):
            assert of_completions(response) == {LONG}

    run(scenario)


def test_short_memory_takes_what_is_kept_and_leaves_readers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(once, "MIN_DROP_BYTES", 200)

    async def scenario() -> None:
        world = World(paced(LONG, 0.03))
        read = asyncio.create_task(ask(world, "read", body={"stream": True}))
        await ask(world, "left", body={"stream": True}, leaves=has(b"four"))
        kept = sum(answer.num_bytes for answer in world.once._running.values())
        assert world.once.give_up(10**9) == kept > 0
        assert world.once.give_up(10**9) == 0
        await until(lambda: world.dispatcher.generations[1].closed)
        joins = await ask(world, "read", body={"stream": True})
        assert joins.error["code"] == "answer_not_kept"
        assert (await read).complete
        texts = [c["choices"][0]["delta"].get("content", "") for c in (await read).chunks]
        assert "".join(texts) == LONG
        assert (count(world, "dropped"), count(world, "abandoned")) == (2, 1)
        assert (await ask(world, "left", body={"stream": True})).complete
        world.once.check_integrity()

    run(scenario)


def test_short_memory_takes_the_largest_and_no_more_than_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(once, "MIN_DROP_BYTES", 1)

    async def scenario() -> None:
        world = World(paced(LONG, 0.03))
        large = asyncio.create_task(ask(world, "large", body={"logprobs": True, "top_logprobs": 5}))
        small = asyncio.create_task(ask(world, "small"))
        await until(lambda: sum(a.num_bytes > 200 for a in world.once._running.values()) == 2)
        sizes = sorted(a.num_bytes for a in world.once._running.values())
        assert world.once.give_up(1) == sizes[-1]
        assert [a.num_bytes for a in world.once._running.values() if a.kept] == sizes[:1]
        assert [(await task).status for task in (large, small)] == [200, 200]
        assert [(await ask(world, "large", body={"logprobs": True, "top_logprobs": 5})).status] == [
            409
        ]
        assert (await ask(world, "small")).status == 200

    run(scenario)


def test_ended_answers_are_bounded_in_bytes_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World()
        monkeypatch.setattr(ended_answers, "MAX_ANSWERS", 3)
        for i in range(5):
            await ask(world, f"k{i}")
        world.once.check_integrity()
        await ask(world, "k4")
        assert len(world.dispatcher.calls) == 5
        await ask(world, "k0")
        assert len(world.dispatcher.calls) == 6
        monkeypatch.setattr(ended_answers, "MAX_BYTES", 10)
        await ask(world, "k9")
        await ask(world, "k9")
        assert len(world.dispatcher.calls) == 8
        world.once.check_integrity()

    run(scenario)


def test_an_answer_is_forgotten_when_its_time_is_over() -> None:
    async def scenario() -> None:
        world = World(idempotency_ttl_s=0.2)
        first = await ask(world)
        await until(lambda: not len(world.once._ended))
        world.once.check_integrity()
        second = await ask(world)
        assert first.json["id"] != second.json["id"]

    run(scenario)
