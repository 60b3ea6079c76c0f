"""A gateway dies: the connection is gone, but with an idempotency key the answer is not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.faults.conftest import Shared
from tests.faults.deployment import Deployment
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.figures import record
from tests.faults.workload import bodies
from tests.gateway.valkey import Valkey

GENERATED = "vllm:generation_tokens_total"


@asynccontextmanager
async def pair(model: Path, folder: Path, *, engines: int = 1) -> AsyncIterator[Deployment]:
    """Two gateways that share engines and a Valkey."""
    valkey = Valkey(folder)
    try:
        async with Deployment(
            folder, model=model, engines=engines, gateways=2, redis=valkey.url
        ) as deployment:
            yield deployment
    finally:
        valkey.stop()


async def killed_amid(d: Deployment, streams: int, tokens: int) -> None:
    """Kills the first gateway under keyed streams, retries on the second, compares all."""
    asked = bodies(streams, tokens)
    expected = await undisturbed(d, asked)
    keys = [{"Idempotency-Key": f"key-{i}"} for i in range(streams)]
    # Some have ended by then and are on record; the others have to be generated again.
    short = [body | {"max_tokens": 8, "min_tokens": 0} for body in asked]
    done_keys = [{"Idempotency-Key": f"done-{i}"} for i in range(streams)]
    done = await asyncio.gather(*map(d.ask, short, done_keys))
    assert all(answer.ok for answer in done), [a.error for a in done]
    await asyncio.sleep(0.5)
    tasks = [asyncio.create_task(d.ask(b, k)) for b, k in zip(asked, keys, strict=True)]
    await asyncio.sleep(0.3)
    d.gateways[0].kill()
    broken = await asyncio.gather(*tasks)
    cut = [answer for answer in broken if not answer.ok]
    assert cut, "some were under way"
    assert not any(answer.done for answer in cut)

    async def again(body: dict[str, object], key: dict[str, str]) -> object:
        async with asyncio.timeout(60):
            while True:
                answer = await d.ask(body, key, gateway=1)
                if answer.status not in (409, 503):  # still claimed by the dead one
                    assert answer.ok, (answer.status, answer.error)
                    return answer.content
                await asyncio.sleep(min(1.0, float(answer.headers.get("Retry-After", "1"))))

    loop = asyncio.get_running_loop()
    begin = loop.time()
    assert await asyncio.gather(*map(again, asked, keys)) == expected
    spent = loop.time() - begin
    before = sum([await e.metric(GENERATED) for e in d.engines])
    replayed = await asyncio.gather(*map(again, short, done_keys))
    assert replayed == [answer.content for answer in done]
    assert sum([await e.metric(GENERATED) for e in d.engines]) == before, "from the record"
    record("gateway_kill", streams=streams, cut=len(cut), seconds_to_retry_all=round(spent, 2))


@pytest.mark.faults
@pytest.mark.parametrize(("streams", "tokens"), [(6, 200), (50, 400)], ids=["6", "50"])
def test_keyed_requests_outlive_their_gateway(
    streams: int, tokens: int, model: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with pair(model, tmp_path) as d:
            await killed_amid(d, streams, tokens)

    asyncio.run(scenario())


def test_a_dead_gateways_requests_leave_the_engine(shared: Shared, tmp_path: Path) -> None:
    async def scenario(shared_deployment: Deployment) -> None:
        engines = shared_deployment.engines
        async with Deployment(tmp_path, through=[e.address for e in engines]) as d:
            tasks = [asyncio.create_task(d.ask(b)) for b in bodies(8, 3000)]
            await asyncio.sleep(0.5)
            loop = asyncio.get_running_loop()
            d.gateway.kill()
            begin = loop.time()
            async with asyncio.timeout(5):
                for engine in engines:
                    await engine.blocks_free()
            record("orphans_gone", ms=round(1e3 * (loop.time() - begin), 1))
            assert not any(answer.ok for answer in await asyncio.gather(*tasks))

    shared.run(scenario)


@pytest.mark.faults
def test_a_stopped_gateway_costs_the_other_nothing(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(model, tmp_path) as d:
            asked = bodies(8, 200)
            expected = await undisturbed(d, asked)
            hung = [asyncio.create_task(d.ask(b)) for b in bodies(8, 3000)]
            await asyncio.sleep(0.3)
            d.gateways[0].send(signal.SIGSTOP)
            answers = await asyncio.gather(*(d.ask(b, gateway=1) for b in asked))
            assert [a.content for a in answers] == expected
            async with asyncio.timeout(60):  # its session is ended: it does not read
                await d.engines[0].blocks_free()
            d.gateways[0].send(signal.SIGCONT)
            for task in hung:
                task.cancel()
            await asyncio.gather(*hung, return_exceptions=True)
            await d.gateways[0].engines("ready", 1)
            await d.idle()

    asyncio.run(scenario())


@pytest.mark.faults
def test_the_same_key_at_two_gateways_is_generated_once(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(model, tmp_path) as d:
            for number, body in enumerate(bodies(10, 100)):
                before = await d.engines[0].metric(GENERATED)
                key = {"Idempotency-Key": f"twice-{number}"}

                async def one(gateway: int, body=body, key=key) -> object:  # type: ignore[no-untyped-def]
                    while True:
                        answer = await d.ask(body, key, gateway=gateway)
                        if answer.status != 409:
                            assert answer.ok, (answer.status, answer.error)
                            return answer
                        await asyncio.sleep(0.1)

                first, second = await asyncio.gather(one(0), one(1))
                assert first.content == second.content  # type: ignore[attr-defined]
                made = await d.engines[0].metric(GENERATED) - before
                assert made == first.completion_tokens  # type: ignore[attr-defined]

    asyncio.run(scenario())


@pytest.mark.faults
@pytest.mark.parametrize("stall_s", [2.0, 5.0])
def test_a_gateway_that_was_blocked_suspects_nobody(
    stall_s: float, model: Path, tmp_path: Path
) -> None:
    """Stopped by the kernel, and by its own loop: what it could not hear is held against nobody."""

    async def scenario() -> None:
        async with Deployment(tmp_path, model=model) as d:
            asked = bodies(10, 300)
            expected = await undisturbed(d, asked)

            async def freeze() -> None:
                d.gateway.send(signal.SIGSTOP)
                await asyncio.sleep(stall_s)
                d.gateway.send(signal.SIGCONT)

            frozen = await disturbed(d, asked, expected, freeze, after_s=0.1)
            assert frozen.wrong == []
            assert "session_lost" not in d.gateway.log, d.gateway.log[-2000:]
            d.gateway.kill()
            d.gateway.env["OCTAVO_FAILPOINTS"] = f"gateway.deliver=sleep({stall_s})@200"
            d.gateway.start()
            await d.gateway.engines("ready", 2)
            blocked = await disturbed(d, asked, expected, nothing, after_s=0)
            assert blocked.wrong == []
            assert "session_lost" not in d.gateway.log, d.gateway.log[-2000:]
            record("gateway_blocked", seconds=stall_s, suspected=0)

    asyncio.run(scenario())


async def nothing() -> None:
    """Breaks nothing."""
