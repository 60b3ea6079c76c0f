"""SIGTERM: an engine hands over what does not end in time, a gateway finishes what it has."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest
from tests.faults.conftest import Shared
from tests.faults.deployment import Deployment, Engine
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.figures import milliseconds, record
from tests.faults.workload import bodies


async def drained(d: Deployment, kind: str) -> None:
    """Ends the first engine with SIGTERM under load; nothing may be cut, nothing new come in."""
    asked = bodies(12, 400)
    expected = await undisturbed(d, asked)
    victim = d.engines[0]
    taken = 0.0

    async def drain() -> None:
        nonlocal taken
        victim.send(signal.SIGTERM)
        await victim.logged('"draining"')
        await asyncio.sleep(0.15)  # until the gateway has heard of it
        taken = await routed(d, victim)
        late = await d.ask_all(bodies(6, 20))
        assert all(answer.ok for answer in late)

    run = await disturbed(d, asked, expected, drain, after_s=0.05)
    assert run.wrong == []
    assert await victim.ended() == 0
    assert await routed(d, victim) == taken, "nothing new after it drained"
    pauses = run.pauses_s(victim.address)
    record("drain", kind=kind, streams=len(asked), unequal=0, pause_ms=milliseconds(pauses))


def test_a_drained_engine_hands_over_what_does_not_end(shared: Shared) -> None:
    shared.run(lambda d: drained(d, "hand over"))


@pytest.mark.faults
def test_a_drained_engine_finishes_what_can_end(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, model=model) as d:
            await drained(d, "finish")

    asyncio.run(scenario())


async def routed(d: Deployment, engine: Engine) -> float:
    """Returns how many attempts an engine was given."""
    rows = await d.gateway.metrics()
    return rows.get(f'octavo_gateway_routes_total{{engine="{engine.address}"}}', 0.0)


@pytest.mark.faults
def test_a_rolling_restart_of_all_engines_cuts_no_stream(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, model=model, engine_flags=["--drain-s", "0.5"]) as d:
            asked = bodies(20, 3000)  # they outlast the first engine's restart
            expected = await undisturbed(d, asked)

            async def roll() -> None:
                for engine in d.engines:
                    engine.send(signal.SIGTERM)
                    assert await engine.ended() == 0
                    engine.start()
                    await engine.ready()
                    await d.gateway.engines("ready", 2)

            run = await disturbed(d, asked, expected, roll, after_s=0.2)
            record("rolling_restart", streams=len(asked), unequal=len(run.wrong))
            assert run.wrong == []

    asyncio.run(scenario())


@pytest.mark.faults
def test_a_single_engine_that_restarts_is_waited_for(model: Path, tmp_path: Path) -> None:
    """With nobody to hand over to, streams wait for the next life of the same engine."""

    async def scenario() -> None:
        async with Deployment(
            tmp_path, model=model, engines=1, gateway_flags=["--resume-wait-s", "120"]
        ) as d:
            asked = bodies(10, 600)
            expected = await undisturbed(d, asked)
            [engine] = d.engines

            async def replace() -> None:
                engine.kill()
                engine.start()

            run = await disturbed(d, asked, expected, replace, after_s=0.2)
            assert run.wrong == []

    asyncio.run(scenario())


def test_a_drained_gateway_finishes_its_streams(shared: Shared, tmp_path: Path) -> None:
    async def scenario(shared_deployment: Deployment) -> None:
        engines = [engine.address for engine in shared_deployment.engines]
        async with Deployment(tmp_path, through=engines) as d:
            asked = bodies(8, 400)
            expected = await undisturbed(d, asked)

            async def drain() -> None:
                d.gateway.send(signal.SIGTERM)
                await asyncio.sleep(0.3)
                with pytest.raises(aiohttp.ClientConnectorError):
                    async with aiohttp.ClientSession() as session:
                        await session.get(d.gateway.url + "/healthz")

            run = await disturbed(d, asked, expected, drain, after_s=0.05)
            assert run.wrong == []
            assert await d.gateway.ended() == 0

    shared.run(scenario)
