"""Engines that live and do not move: stopped, stuck in a step, or ten times slower."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.faults.conftest import Shared
from tests.faults.deployment import Deployment, Engine
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.figures import RUNS, milliseconds, record
from tests.faults.workload import bodies, body

DROPPED = "octavo_gateway_dropped_deltas_total"


async def until_idle(engine: Engine, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await engine.idle():
            await asyncio.sleep(0.02)


def test_streams_of_a_stopped_engine_go_on_and_its_late_tokens_are_dropped(shared: Shared) -> None:
    async def scenario(d: Deployment) -> None:
        asked = bodies(10, 400)  # long enough that a busy machine stops it in the middle
        victim = d.engines[0]

        async def stop() -> None:
            nonlocal victim
            victim = d.busiest()
            d.stop(victim)

        expected = await undisturbed(d, asked)
        run = await disturbed(d, asked, expected, stop, after_s=0)
        d.resume(victim)
        assert run.wrong == []
        assert run.pauses_s(victim.address)
        await d.gateway.engines("ready", 2)
        await until_idle(victim)
        after = await disturbed(d, asked, expected, nothing, after_s=0)
        assert after.wrong == []

    shared.run(scenario)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_fifty_streams_and_one_of_two_engines_stopped(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        rng = random.Random(3)
        async with Deployment(tmp_path, model=model) as d:
            asked = bodies(50, 400)
            expected = await undisturbed(d, asked)
            pauses: list[float] = []
            wrong: list[str] = []
            freed: list[float] = []
            for number in range(RUNS):
                victim = d.engines[number % 2]

                async def stop(victim: Engine = victim) -> None:
                    d.stop(victim)

                run = await disturbed(d, asked, expected, stop, after_s=rng.uniform(0, 1.2))
                pauses += run.pauses_s(victim.address)
                wrong += run.wrong
                d.resume(victim)
                loop = asyncio.get_running_loop()
                thawed = loop.time()
                await until_idle(victim)
                freed.append(loop.time() - thawed)
                await d.gateway.engines("ready", 2)
                await d.idle()
            record(
                "engine_stop", runs=RUNS, streams=50 * RUNS, unequal=len(wrong),
                interrupted=len(pauses), pause_ms=milliseconds(pauses),
                freed_after_cont_ms=milliseconds(freed), dropped=await d.gateway.metric(DROPPED),
            )  # fmt: skip
            assert wrong == []

    asyncio.run(scenario())


@pytest.mark.faults
def test_a_stuck_step_is_left_and_the_watchdog_ends_the_process(
    model: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, model=model, engine_flags=["--watchdog-s", "6"]) as d:
            asked = bodies(10, 250)
            expected = await undisturbed(d, asked)
            victim = d.engines[0]
            victim.env["OCTAVO_FAILPOINTS"] = "engine.step=sleep(600)@60"
            await d.restart(*d.engines)  # both, or all would go where their prompts are cached
            run = await disturbed(d, asked, expected, nothing, after_s=0)
            assert run.wrong == []
            assert await victim.ended(20) == 70
            assert "engine_stuck" in victim.log
            assert 'File "' in victim.log, "the stacks of all threads"
            stuck = max(max(a.gaps_s, default=0) for a in run.on(victim.address))
            record("engine_step_stuck", longest_pause_s=round(stuck, 2))

    asyncio.run(scenario())


async def nothing() -> None:
    """Breaks nothing."""


@pytest.mark.faults
def test_a_slow_engine_keeps_its_streams_and_gets_few_new_ones(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, model=model) as d:
            asked = bodies(8, 100)
            expected = await undisturbed(d, asked)
            slow, fast = d.engines
            slow.env["OCTAVO_FAILPOINTS"] = "engine.step=sleep(0.05)"
            await d.restart(slow, fast)
            first = await disturbed(d, asked, expected, nothing, after_s=0)
            assert first.wrong == []
            resumed = "octavo_gateway_retries_total"
            assert await d.gateway.metric(resumed) == 0, "slow is not dead"
            later = [await d.ask(body(i, 10)) for i in range(200, 220)]
            assert all(a.ok for a in later)
            share = sum(a.route[0] == slow.address for a in later) / len(later)
            record("engine_slow", share_of_new_requests=share)
            assert share <= 0.25

    asyncio.run(scenario())
