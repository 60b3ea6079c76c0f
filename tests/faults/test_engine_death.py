"""kill -9 of an engine: every stream goes on elsewhere, byte for byte the same."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.faults.conftest import Shared
from tests.faults.deployment import Deployment, Engine
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.figures import RUNS, milliseconds, record
from tests.faults.proxy import Proxy
from tests.faults.workload import bodies, body


def test_streams_of_a_killed_engine_go_on_elsewhere(shared: Shared) -> None:
    async def scenario(d: Deployment) -> None:
        asked = bodies(12, 250)
        victim = d.engines[0]

        async def kill() -> None:
            nonlocal victim
            victim = d.busiest()
            victim.kill()

        expected = await undisturbed(d, asked)
        run = await disturbed(d, asked, expected, kill, after_s=0)
        assert run.wrong == []
        assert run.pauses_s(victim.address), "some were interrupted"
        assert max(run.pauses_s(victim.address)) < 10

    shared.run(scenario)


def test_requests_whose_engine_dies_before_the_first_token(shared: Shared) -> None:
    async def scenario(d: Deployment) -> None:
        asked = bodies(8, 20, first=100)
        victim = d.engines[0]
        expected = await undisturbed(d, asked)
        d.stop(victim)  # takes what it is sent, and does nothing with it

        async def kill() -> None:
            victim.kill()

        run = await disturbed(d, asked, expected, kill, after_s=0.3, begun=False)
        assert run.wrong == []
        record("death_before_first_token", ttft_ms=milliseconds([a.ttft_s for a in run.answers]))

    shared.run(scenario)


@pytest.mark.faults
def test_a_restarted_engine_is_known_to_hold_nothing(shared: Shared) -> None:
    async def scenario(d: Deployment) -> None:
        long = body(0, 8, prompt=[random.Random(4).randrange(256) for _ in range(400)])
        first = again = await d.ask(long)
        async with asyncio.timeout(10):
            while again.route[1] < 384:  # until the gateway has heard of the blocks
                again = await d.ask(long)
        assert again.cached_tokens >= 384
        name = again.route[0]
        [holder] = [e for e in d.engines if e.address == name]
        await d.restart(holder)
        other = [e for e in d.engines if e is not holder]
        for engine in other:
            d.stop(engine)
        await d.gateway.engines("ready", 1)
        after = await d.ask(long)
        for engine in other:
            d.resume(engine)
        await d.gateway.engines("ready", 2)
        assert after.route == (name, 0), "no hit that died with the old process"
        assert after.cached_tokens == 0
        assert after.content == again.content == first.content

    shared.run(scenario)


@pytest.mark.faults
def test_another_process_at_the_same_address(model: Path, tmp_path: Path) -> None:
    """As when an address is given to a new pod: the old one still runs, and is not reached."""

    async def scenario() -> None:
        old, other, new = (Engine(f"engine-{i}", model, folder=tmp_path) for i in range(3))
        async with Proxy(old.port) as proxy:
            d = Deployment(tmp_path, own=[old, other, new], through=[proxy.address, other.address])
            async with d:
                asked = bodies(10, 600)
                expected = await undisturbed(d, asked)

                async def swap() -> None:
                    proxy.target = new.port
                    proxy.cut()

                run = await disturbed(d, asked, expected, swap, after_s=0.1)
                assert run.wrong == []
                assert run.pauses_s(proxy.address)
                async with asyncio.timeout(5):
                    await old.blocks_free()
                assert "engine_restarted" in d.gateway.log
                again = await disturbed(d, asked, expected, swap, after_s=0.1)
                assert again.wrong == []
                await d.idle()

    asyncio.run(scenario())


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_fifty_streams_and_one_of_two_engines(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        rng = random.Random(2)
        async with Deployment(tmp_path, model=model) as d:
            asked = bodies(50, 400)
            expected = await undisturbed(d, asked)
            pauses: list[float] = []
            wrong: list[str] = []
            interrupted = 0
            for number in range(RUNS):
                victim = d.engines[number % 2]

                async def kill(victim: Engine = victim) -> None:
                    victim.kill()

                run = await disturbed(d, asked, expected, kill, after_s=rng.uniform(0, 1.2))
                pauses += run.pauses_s(victim.address)
                wrong += run.wrong
                interrupted += len(run.pauses_s(victim.address))
                await d.restart(victim)
                await d.idle()
            record(
                "engine_kill", runs=RUNS, streams=50 * RUNS, unequal=len(wrong),
                interrupted=interrupted, pause_ms=milliseconds(pauses),
            )  # fmt: skip
            assert wrong == []

    asyncio.run(scenario())


@pytest.mark.faults
def test_the_streams_of_a_dead_engine_are_spread(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, model=model, engines=3) as d:
            asked = bodies(30, 400)
            expected = await undisturbed(d, asked)
            before = await routes(d)
            victim = d.engines[0]

            async def kill() -> None:
                victim.kill()

            run = await disturbed(d, asked, expected, kill, after_s=0.3)
            assert run.wrong == []
            resumed = {
                e.address: (await routes(d))[e.address] - before[e.address] - len(run.on(e.address))
                for e in d.engines[1:]
            }
            record("engine_kill_spread", resumed=list(resumed.values()))
            assert min(resumed.values()) >= len(run.on(victim.address)) // 4

    asyncio.run(scenario())


async def routes(d: Deployment) -> dict[str, float]:
    """Returns how many attempts each engine was given."""
    rows = await d.gateway.metrics()
    return {
        e.address: rows.get(f'octavo_gateway_routes_total{{engine="{e.address}"}}', 0)
        for e in d.engines
    }


@pytest.mark.faults
def test_a_request_survives_two_deaths_and_ends_with_the_third(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, model=model, engines=4) as d:
            long = body(1, 3000)
            [expected] = await undisturbed(d, [long])
            for deaths in (2, 3):
                asking = asyncio.create_task(d.ask(long))
                for _ in range(deaths):
                    engine = await running_on(d)
                    await asyncio.sleep(0.2)
                    engine.kill()
                answer = await asking
                if deaths == 2:
                    assert answer.ok
                    assert answer.content == expected
                else:
                    assert answer.error == "engine_failure"
                    assert not answer.done
                    assert not answer.whole, "what was cut must not look complete"
                await d.restart(*(e for e in d.engines if not e.alive))

    asyncio.run(scenario())


async def running_on(d: Deployment) -> Engine:
    """Returns the engine that runs the only request, once one does."""
    async with asyncio.timeout(20):
        while True:
            for engine in d.engines:
                if engine.alive and await engine.metric("vllm:num_requests_running"):
                    return engine
            await asyncio.sleep(0.02)
