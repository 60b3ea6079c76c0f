"""A request whose tokens all come at its end: what the gateway makes of the silence before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.gateway.asking import always, by_attempt, expected
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import gateway, prompt, until
from tests.gateway.script import Script

from octavo.gateway.dispatch import Generation
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import ENGINE_FAILURE, INVALID_VALUE, OctavoError
from octavo.v1.features import FEATURE_BEAM

TOKENS = 5
NOTHING, WORD, FIRST = 0, 1, 2
"""What has been said when the engine dies: nothing, that it has begun, the first choice."""


class BeamEngine(FakeEngine):
    """Answers a beam search as the real engine does: a word when it has begun, then all at once."""

    async def _generate(
        self, session: Any, request: engine_pb2.GenerateRequest, script: Script
    ) -> None:
        def tell(*choices: int, **fields: object) -> engine_pb2.SessionUpdate:
            update = engine_pb2.SessionUpdate()
            for choice in choices:
                delta = update.deltas.add(
                    request_id=request.request_id, attempt=request.attempt, choice=choice
                )
                delta.MergeFrom(engine_pb2.Delta(**fields))  # type: ignore[arg-type]
            session.outbox.put_nowait(update)
            return update

        usage = self._prefill(request)
        choices = [resume.choice for resume in request.resumes] or list(range(request.n or 1))
        if script.die_after == NOTHING:
            self._dying = asyncio.create_task(self.kill())
            return
        tell(choices[0], cached_tokens=usage.cached_tokens)
        await asyncio.sleep(script.delay_s)
        if script.die_after == WORD:
            self._dying = asyncio.create_task(self.kill())
            return
        usage.output_tokens = TOKENS * len(choices)
        for choice in choices:
            text = expected(bytes(request.token_ids.ids).decode(), 0, TOKENS, choice)
            update = tell(
                choice,
                text=text,
                token_ids=list(text.encode()),
                finish_reason=common_pb2.FINISH_REASON_LENGTH,
                usage=usage if choice == choices[-1] else None,
            )
            assert update.deltas
            if script.die_after == FIRST:
                await asyncio.sleep(0.05)
                self._dying = asyncio.create_task(self.kill())
                return


def beam(text: str, **fields: object) -> engine_pb2.GenerateRequest:
    request = prompt(text, **({"n": 3, "max_tokens": TOKENS} | fields))
    request.beam.width = 4
    return request


async def texts(generation: Generation) -> list[str]:
    parts = ["", "", ""]
    async for delta in generation:
        parts[delta.choice] += delta.text
    return parts


WHOLE = [expected("abc", 0, TOKENS, choice) for choice in range(3)]


@pytest.mark.parametrize("said", [NOTHING, WORD], ids=["nothing", "word"])
def test_a_search_whose_engine_dies_begins_again_elsewhere(said: int) -> None:
    async def scenario() -> None:
        script = by_attempt(Script(die_after=said), Script())
        engines = [BeamEngine(script=script) for _ in range(2)]
        async with gateway(*engines) as gw:
            generation = await gw.open(beam("abc"))
            assert await texts(generation) == WHOLE
            second = max((r for e in engines for r in e.requests), key=lambda r: r.attempt)
            assert (second.attempt, second.deaths, len(second.resumes)) == (1, 1, 0)
            assert second.beam.width == 4
            record = await gw.records.get(generation.id)
            assert record is not None
            assert record["output_tokens"] == 3 * TOKENS
            gw.check_idle()

    asyncio.run(scenario())


def test_what_was_told_of_it_is_not_told_again() -> None:
    async def scenario() -> None:
        script = by_attempt(Script(die_after=FIRST), Script())
        engines = [BeamEngine(script=script) for _ in range(2)]
        async with gateway(*engines) as gw:
            assert await texts(await gw.open(beam("abc"))) == WHOLE
            second = max((r for e in engines for r in e.requests), key=lambda r: r.attempt)
            assert [(r.choice, list(r.output_ids)) for r in second.resumes] == [(1, []), (2, [])]
            gw.check_idle()

    asyncio.run(scenario())


def test_it_goes_on_after_a_second_death_that_was_not_its_fault() -> None:
    async def scenario() -> None:
        dying = Script(die_after=WORD, delay_s=0.05)
        script = by_attempt(Script(die_after=FIRST), dying, Script())
        async with gateway(*(BeamEngine(script=script) for _ in range(3))) as gw:
            generation = await gw.open(beam("abc"))
            assert await texts(generation) == WHOLE
            record = await gw.records.get(generation.id)
            assert record is not None
            assert (record["attempts"], record["deaths"]) == (3, 2)
            gw.check_idle()

    asyncio.run(scenario())


def test_a_search_that_has_begun_is_not_blamed_for_the_second_death() -> None:
    """It is as innocent as a request that has got a token; only the third death ends it."""

    async def scenario() -> None:
        engines = [
            BeamEngine(script=always(Script(die_after=WORD, delay_s=0.05))) for _ in range(4)
        ]
        async with gateway(*engines) as gw:
            with pytest.raises(OctavoError) as caught:
                await texts(await gw.open(beam("abc")))
            assert caught.value.kind is ENGINE_FAILURE
            assert sum(len(e.requests) for e in engines) == 3
            gw.check_idle()

    asyncio.run(scenario())


def test_first_token_is_what_the_client_gets_and_beams_are_what_the_engine_runs() -> None:
    async def scenario() -> None:
        engine = BeamEngine(script=always(Script(delay_s=0.1)))
        async with gateway(engine) as gw:
            generation = await gw.open(beam("abc"))
            word = await anext(generation)
            assert (word.cached_tokens, len(word.token_ids)) == (0, 0)
            assert gw.replicas[0].table.choices == 4
            assert gw.replicas[0].table.unreported_tokens == 0
            record = await gw.records.get(generation.id)
            assert record is not None
            assert record["state"] == "routed"
            await texts(generation)
            gw.check_idle()

    asyncio.run(scenario())


def test_engines_without_beam_search_do_not_get_one() -> None:
    async def scenario() -> None:
        old, new = BeamEngine(), BeamEngine()
        old.card.features &= ~FEATURE_BEAM
        async with gateway(old, new) as gw:
            for _ in range(3):
                assert await texts(await gw.open(beam("abc"))) == WHOLE
            await until(lambda: new.num_running == 0)
            assert (len(old.requests), len(new.requests)) == (0, 3)

    asyncio.run(scenario())


def test_what_makes_no_sense_is_refused_before_an_engine_hears_of_it() -> None:
    async def scenario() -> None:
        engine = BeamEngine()
        async with gateway(engine) as gw:
            with pytest.raises(OctavoError) as caught:
                await gw.open(beam("abc", n=5))
            assert (caught.value.kind, caught.value.param) == (INVALID_VALUE, "n")
            assert not engine.requests

    asyncio.run(scenario())
