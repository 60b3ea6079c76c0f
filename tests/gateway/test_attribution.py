"""Whose fault a second death is: only of one that was alone there, and that the engine had in."""

import asyncio
from collections.abc import Callable

import pytest
from tests.gateway.asking import seeded
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import gateway, until
from tests.gateway.script import Script

from octavo.gateway.dispatch import Generation, ResumePolicy
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import ENGINE_FAILURE, OctavoError

Choose = Callable[[engine_pb2.GenerateRequest], Script]


async def outcome(generation: Generation) -> str:
    try:
        return "".join([delta.text async for delta in generation])
    except OctavoError as error:
        return error.kind.name


def is_poison(request: engine_pb2.GenerateRequest) -> bool:
    return bytes(request.token_ids.ids).startswith(b"poison")


def run(
    script: Choose, requests: list[engine_pb2.GenerateRequest], engines: int
) -> tuple[list[str], int]:
    """Runs requests on the first engine; the others become ready when the one before is dead."""

    async def scenario() -> tuple[list[str], int]:
        fleet = [FakeEngine(script=script) for _ in range(engines)]
        for engine in fleet[1:]:
            engine.set_stage(engine_pb2.STAGE_LOADING)
        async with gateway(*fleet, wait=False, resume=ResumePolicy()) as gw:
            await until(lambda: gw.replicas[0].ready)
            opened = [await gw.open(request) for request in requests]
            tasks = [asyncio.create_task(outcome(generation)) for generation in opened]
            for replica, engine in zip(gw.replicas[1:], fleet[1:], strict=True):
                previous = gw.replicas[gw.replicas.index(replica) - 1]
                await until(lambda p=previous: not p.ready or all(t.done() for t in tasks), 20)  # type: ignore[misc]
                engine.set_stage(engine_pb2.STAGE_READY)
                await until(lambda r=replica: r.ready)  # type: ignore[misc]
            texts = await asyncio.gather(*tasks)
            dead = sum(not replica.ready for replica in gw.replicas)
            gw.check_idle()
            return texts, dead

    return asyncio.run(scenario())


def test_a_poison_takes_two_engines_and_no_neighbour() -> None:
    def script(request: engine_pb2.GenerateRequest) -> Script:
        if is_poison(request):
            return Script(delay_s=0.02, die_after=5)
        return Script(stop_after=2) if request.attempt == 0 else Script()

    requests = [seeded(text, max_tokens=8) for text in ("poison", "one", "two")]
    texts, dead = run(script, requests, engines=3)
    assert texts[0] == "request_failed"
    assert [len(text) for text in texts[1:]] == [8, 8]
    assert dead == 2


def test_two_that_were_on_probation_together_are_both_spared() -> None:
    def script(request: engine_pb2.GenerateRequest) -> Script:
        if request.attempt == 0:
            return Script(delay_s=0.05, stop_after=3, die_after=3 if is_poison(request) else None)
        if request.attempt == 1:
            at = len(request.resumes[0].output_ids) if request.resumes else 0
            return Script(first_delay_s=2.5, die_after=at)
        return Script()

    requests = [seeded(text, max_tokens=6) for text in ("poison", "other")]
    texts, dead = run(script, requests, engines=3)
    assert [len(text) for text in texts] == [6, 6], texts
    assert dead == 2


def test_each_choice_has_to_be_proven() -> None:
    """The engine runs the choices of a suspect one after the other."""

    class OneChoiceFirst(FakeEngine):
        async def _generate(
            self, session: object, request: engine_pb2.GenerateRequest, script: Script
        ) -> None:
            if is_poison(request) and request.resumes:
                first = request.resumes[0]
                update = engine_pb2.SessionUpdate()
                update.deltas.add(
                    request_id=request.request_id,
                    attempt=request.attempt,
                    position=len(first.output_ids),
                    token_ids=[65],
                    text="A",
                )
                session.outbox.put_nowait(update)  # type: ignore[attr-defined]
                await asyncio.sleep(0.1)
                self._dying = asyncio.create_task(self.kill())
                return
            await super()._generate(session, request, script)  # type: ignore[arg-type]

    async def scenario() -> None:
        engines = [OneChoiceFirst(script=lambda _: Script(delay_s=0.02, die_after=4)) for _ in "ab"]
        async with gateway(*engines) as gw:
            assert await outcome(await gw.open(seeded("poison", n=2, max_tokens=9))) == (
                "request_failed"
            )
            gw.check_idle()

    asyncio.run(scenario())


def test_what_was_never_sent_is_no_death() -> None:
    async def scenario() -> None:
        async with gateway(FakeEngine(), FakeEngine()) as gw:
            for replica in gw.replicas:
                replica.table._on_outgoing = lambda: None
            opening = asyncio.create_task(gw.open(seeded("abc", max_tokens=3)))
            await until(lambda: any(r.table.in_flight for r in gw.replicas))
            for replica in gw.replicas:
                replica.table._on_outgoing = replica._notify
                replica.table.lose_all("gone")
            generation = await opening
            assert len(await outcome(generation)) == 3
            record = await gw.records.get(generation.id)
            assert record is not None
            assert (record["attempts"], record["deaths"]) == (2, 0)

    asyncio.run(scenario())


def test_an_engine_that_handed_over_may_go_on_when_it_has_restarted() -> None:
    async def scenario() -> None:
        def script(request: engine_pb2.GenerateRequest) -> Script:
            return Script(hand_over_after=4) if request.attempt == 0 else Script()

        engine = FakeEngine(script=script)
        async with gateway(engine, resume=ResumePolicy(wait_s=20.0)) as gw:
            answer = asyncio.create_task(outcome(await gw.open(seeded("abc", max_tokens=9))))
            await until(lambda: gw.metric("retries_total", reason="handed_over") == 1)
            await engine.restart()
            assert len(await answer) == 9
            assert engine.requests[-1].admitted

    asyncio.run(scenario())


@pytest.mark.parametrize("short", [True, False])
def test_no_engine_goes_on_that_is_too_small_for_the_rest(short: bool) -> None:
    async def scenario() -> None:
        def script(request: engine_pb2.GenerateRequest) -> Script:
            return Script(delay_s=0.01, die_after=5) if request.attempt == 0 else Script()

        big, small = FakeEngine(script=script), FakeEngine(script=script, max_model_len=32)
        small.set_stage(engine_pb2.STAGE_LOADING)
        async with gateway(big, small, wait=False, resume=ResumePolicy(wait_s=0.5)) as gw:
            await until(lambda: gw.replicas[0].ready)
            generation = await gw.open(seeded("abc", max_tokens=29 if short else 30))
            small.set_stage(engine_pb2.STAGE_READY)
            await until(lambda: gw.replicas[1].ready)
            end = await outcome(generation)
            assert len(end) == 29 if short else end == ENGINE_FAILURE.name

    asyncio.run(scenario())


def test_prompt_logprobs_of_two_numerics_are_not_mixed() -> None:
    class Scores(FakeEngine):
        async def _generate(
            self, session: object, request: engine_pb2.GenerateRequest, script: Script
        ) -> None:
            update = engine_pb2.SessionUpdate()
            delta = update.deltas.add(request_id=request.request_id, attempt=request.attempt)
            for _ in range(2 if request.attempt == 0 else 4):
                delta.prompt_logprobs.add()
            if request.attempt:
                delta.finish_reason = common_pb2.FINISH_REASON_LENGTH
            session.outbox.put_nowait(update)  # type: ignore[attr-defined]
            if request.attempt == 0:
                await asyncio.sleep(0.1)
                self._dying = asyncio.create_task(self.kill())

    async def scenario() -> None:
        one, two = (Scores(numerics_id=name) for name in ("one", "two"))
        two.set_stage(engine_pb2.STAGE_LOADING)
        async with gateway(one, two, wait=False, resume=ResumePolicy(wait_s=0.5)) as gw:
            await until(lambda: gw.replicas[0].ready)
            generation = await gw.open(seeded("abcd", score_only=True, prompt_logprobs=0))
            two.set_stage(engine_pb2.STAGE_READY)
            await until(lambda: gw.replicas[1].ready)
            assert await outcome(generation) == ENGINE_FAILURE.name

    asyncio.run(scenario())
