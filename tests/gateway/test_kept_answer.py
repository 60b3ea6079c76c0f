from __future__ import annotations

import asyncio

import pytest
from tests.gateway.test_idempotency import entry

from octavo.gateway import kept_answer
from octavo.gateway.idempotency import Identity
from octavo.gateway.kept_answer import Joined, KeptAnswer, Reader
from octavo.v1 import engine_pb2
from octavo.v1.errors import ANSWER_NOT_KEPT, ENGINE_FAILURE, IDEMPOTENCY_KEY_REUSED, OctavoError


def data(text: str) -> bytes:
    return engine_pb2.Delta(text=text).SerializeToString()


class Watched:
    def __init__(self, num_prompts: int = 1) -> None:
        self.notes: list[str] = []
        identity = Identity(id="a" * 32, created=1, seeds=(1,) * num_prompts)
        self.answer = KeptAnswer(
            entry(identity=identity),
            on_empty=lambda _: self.notes.append("empty"),
            on_read=lambda _: self.notes.append("read"),
        )


async def text_of(reader: Reader) -> str:
    return "".join([delta.text async for delta in reader])


def test_every_reader_gets_everything_whenever_it_comes() -> None:
    async def scenario() -> None:
        answer = Watched().answer
        early = asyncio.create_task(text_of(answer.open(0)))
        answer.put(0, data("a"))
        await asyncio.sleep(0)
        middle = asyncio.create_task(text_of(answer.open(0)))
        answer.put(0, data("b"))
        answer.end("finished")
        late = text_of(answer.open(0))
        assert [await early, await middle, await late] == ["ab", "ab", "ab"]

    asyncio.run(scenario())


def test_prompts_are_kept_apart() -> None:
    async def scenario() -> None:
        answer = Watched(2).answer
        answer.load([[data("a"), data("b")], [data("c")]])
        answer.end("finished")
        assert [await text_of(answer.open(i)) for i in (0, 1)] == ["ab", "c"]
        assert answer.deltas == ((data("a"), data("b")), (data("c"),))

    asyncio.run(scenario())


def test_what_was_delivered_comes_before_the_error() -> None:
    async def scenario() -> None:
        answer = Watched().answer
        reader = answer.open(0)
        answer.put(0, data("a"))
        answer.end("free", OctavoError(ENGINE_FAILURE))
        assert (await anext(reader)).text == "a"
        with pytest.raises(OctavoError):
            await anext(reader)
        assert answer.deltas == ((),)

    asyncio.run(scenario())


def test_it_tells_when_its_readers_have_left_and_when_one_comes() -> None:
    async def scenario() -> None:
        watched = Watched(2)
        answer = watched.answer
        first, second = answer.open(0), answer.open(1)
        await first.aclose()
        await first.aclose()
        assert watched.notes == ["read"]
        await second.aclose()
        third = answer.open(0)
        answer.end("finished")
        await third.aclose()
        assert watched.notes == ["read", "empty", "read"]

    asyncio.run(scenario())


def test_a_client_in_trouble_does_not_end_the_generation() -> None:
    async def scenario() -> None:
        answer = Watched().answer
        reader, other = answer.open(0), answer.open(0)
        reader.fail(OctavoError(ENGINE_FAILURE))
        await reader.aclose()
        answer.put(0, data("a"))
        answer.end("finished")
        assert await text_of(other) == "a"

    asyncio.run(scenario())


def test_an_answer_beyond_the_bound_is_not_kept_but_its_readers_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_answer, "MAX_ANSWER_BYTES", 300)

    async def scenario() -> None:
        answer = Watched().answer
        reader = answer.open(0)
        for _ in range(10):
            answer.put(0, data("x"))
        assert not answer.kept
        assert answer.num_bytes == 0
        assert answer.deltas == ((),)
        answer.end("too_large")
        assert await text_of(reader) == "x" * 10

    asyncio.run(scenario())


def test_an_answer_of_the_store_is_taken_whatever_the_bound_here_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_answer, "MAX_ANSWER_BYTES", 1)

    async def scenario() -> None:
        answer = Watched().answer
        waiting = answer.open(0)
        answer.load([[data("a"), data("b")]])
        answer.end("finished")
        assert await text_of(waiting) == "ab"
        assert await text_of(answer.open(0)) == "ab"

    asyncio.run(scenario())


def test_nobody_reads_an_answer_whose_beginning_is_gone() -> None:
    async def scenario() -> None:
        answer = Watched().answer
        answer.put(0, data("a"))
        early = answer.open(0)
        answer.drop()
        with pytest.raises(OctavoError) as caught:
            answer.open(0)
        assert caught.value.kind is ANSWER_NOT_KEPT
        assert answer.num_readers == 1
        answer.put(0, data("b"))
        answer.end("too_large")
        assert await text_of(early) == "ab"

    asyncio.run(scenario())


def test_whoever_joins_reads_every_prompt_from_that_moment_on() -> None:
    async def scenario() -> None:
        watched = Watched(3)
        answer = watched.answer
        joined = Joined(answer, found=False)
        for prompt in range(3):
            answer.put(prompt, data(f"a{prompt}"))
        answer.drop()
        with pytest.raises(OctavoError):
            Joined(answer, found=True)
        for prompt in range(3):
            answer.put(prompt, data("b"))
        answer.end("too_large")
        texts = [await text_of(await joined.open(i)) for i in range(3)]
        assert texts == ["a0b", "a1b", "a2b"]
        joined.close()
        joined.close()
        assert (answer.num_readers, watched.notes) == (0, ["read"])

    asyncio.run(scenario())


def test_whoever_joins_learns_that_the_key_is_refused() -> None:
    async def scenario() -> None:
        answer = Watched().answer
        joined = Joined(answer, found=False)
        waiting = asyncio.create_task(joined.known())
        await asyncio.sleep(0)
        answer.refuse(OctavoError(IDEMPOTENCY_KEY_REUSED))
        with pytest.raises(OctavoError) as caught:
            await waiting
        assert caught.value.kind is IDEMPOTENCY_KEY_REUSED

    asyncio.run(scenario())
