"""A request that breaks whatever computes it costs its own client an error, and others nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.faults.conftest import Shared
from tests.faults.deployment import Deployment
from tests.faults.disturbed_run import DisturbedRun, undisturbed
from tests.faults.figures import record
from tests.faults.stream_client import Answer
from tests.faults.workload import TOXIN, bodies, body, poisoned_by_toxin


async def poison(d: Deployment, streams: int) -> tuple[DisturbedRun, Answer]:
    """Asks the poisoned request among others; returns their answers and its own."""
    asked = bodies(streams, 300)
    expected = await undisturbed(d, asked)
    tasks = [asyncio.create_task(d.ask(b)) for b in asked]
    await asyncio.sleep(0.15)
    poisoned = asyncio.create_task(d.ask(body(0, 50, prompt=[1, 2, 3, *TOXIN, 4])))
    answers = await asyncio.gather(*tasks)
    run = DisturbedRun(expected=expected, answers=answers, broken_at=0.0)
    return run, await asyncio.wait_for(poisoned, 60)


@pytest.mark.faults
@pytest.mark.parametrize("streams", [12, 48])
def test_a_request_that_aborts_the_process(streams: int, model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(
            tmp_path, model=model, engines=3, engine_env=poisoned_by_toxin("abort")
        ) as d:
            run, poisoned = await poison(d, streams)
            lost = sum(not engine.alive for engine in d.engines)
            record(
                "poison_abort", streams=streams, engines_lost=lost, unequal=len(run.wrong),
                status=poisoned.status, error=poisoned.error,
            )  # fmt: skip
            assert run.wrong == []
            assert lost <= 2
            assert (poisoned.status, poisoned.error) == (500, "request_failed")
            dead = [e for e in d.engines if not e.alive]
            await d.restart(*dead)
            again, _ = await poison(d, 12)
            assert again.wrong == []

    asyncio.run(scenario())


def test_a_request_that_fails_its_step(shared: Shared) -> None:
    async def scenario(d: Deployment) -> None:
        run, poisoned = await poison(d, 8)
        assert run.wrong == []
        assert (poisoned.status, poisoned.error) == (500, "request_failed")
        assert all(engine.alive for engine in d.engines)

    shared.run(scenario)
