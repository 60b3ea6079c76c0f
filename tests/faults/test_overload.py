"""Too much to do: who comes in is served, who does not is told when to return, nothing sticks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.bounds import EVENTUALLY_S
from tests.faults import cgroup
from tests.faults.deployment import Deployment
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.figures import milliseconds, quantile, record
from tests.faults.stream_client import Answer
from tests.faults.workload import Body, bodies
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import until
from tests.gateway.script import Script


def test_what_is_beyond_the_places_is_sent_away_with_a_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        go = asyncio.Event()  # until it is set no place comes free, whatever is held up meanwhile
        engine = await FakeEngine(script=lambda _: Script(go=go)).start()

        def executed() -> int:
            return len({request.request_id for request in engine.requests})

        async with Deployment(
            tmp_path, through=[engine.address], gateway_flags=["--max-requests", "10"]
        ) as d:
            asked = [asyncio.create_task(d.ask(b | {"n": 1})) for b in bodies(30, 8)]
            await until(lambda: executed() + sum(t.done() for t in asked) == 30)
            refused = [t.result() for t in asked if t.done()]
            assert {(a.status, a.error) for a in refused} == {(429, "overloaded")}
            assert all(1 <= int(a.headers["Retry-After"]) <= 60 for a in refused)
            assert executed() == 10, "what is refused is never executed"
            go.set()
            assert sum(a.ok for a in await asyncio.gather(*asked)) == 10

            go.clear()
            busy = [asyncio.create_task(d.ask(b | {"n": 1})) for b in bodies(9, 8)]
            await until(lambda: executed() - 10 + sum(t.done() for t in busy) == 9)
            low = await d.ask(bodies(1, 8)[0] | {"priority": 1})
            assert low.status == 429, "the last places are not for the lowest class"
            last = asyncio.create_task(d.ask(bodies(1, 8)[0]))
            await until(lambda: executed() == 10 + 9 + 1 or last.done())
            go.set()
            assert [a for a in await asyncio.gather(*busy, last) if not a.ok] == []
        await engine.kill()

    asyncio.run(scenario())


@pytest.mark.faults
@cgroup.needs_memory
def test_memory_runs_short_in_order(model: Path, tmp_path: Path) -> None:
    """Bodies that never end fill the memory; streams that run and the process live on."""

    async def scenario() -> None:
        async with Deployment(
            tmp_path, model=model, engines=1, gateway_flags=["--max-body-bytes", "60000000"]
        ) as d:
            limit = d.gateway.usage.memory_info().rss + 150_000_000
            d.gateway.kill()
            at = d.gateway.command
            at += ["--memory-limit-bytes", str(limit), "--max-body-bytes-total", "2000000000"]
            d.gateway.start()
            with cgroup.memory_limit(d.gateway.pid, limit + 50_000_000):
                await d.gateway.engines("ready", 1)
                asked = bodies(4, 3000)
                expected = await undisturbed(d, asked)
                refused = {"low": 0, "normal": 0}
                levels = set()
                writers: list[asyncio.StreamWriter] = []

                async def fill() -> None:
                    for _ in range(12):
                        writers.append(await upload(d.gateway.port, 20_000_000))
                        await asyncio.sleep(0.15)
                        levels.add(await d.gateway.metric("octavo_gateway_overload_level"))
                        for name, extra in (("low", {"priority": 1}), ("normal", {})):
                            answer = await d.ask(bodies(1, 2)[0] | extra)
                            assert answer.ok or answer.status == 429, answer
                            if not answer.ok:
                                assert int(answer.headers["Retry-After"]) >= 1
                                refused[name] += 1

                run = await disturbed(d, asked, expected, fill, after_s=0.1)
                record("memory", levels=sorted(levels), refused=refused, unequal=len(run.wrong))
                assert run.wrong == []
                assert refused["low"] >= refused["normal"]
                assert refused["low"] > 0
                assert d.gateway.alive
                for writer in writers:
                    writer.transport.abort()
                async with asyncio.timeout(EVENTUALLY_S):
                    while not (await d.ask(bodies(1, 2)[0] | {"priority": 1})).ok:
                        await asyncio.sleep(0.2)

    asyncio.run(scenario())


async def upload(port: int, size: int) -> asyncio.StreamWriter:
    """Sends the beginning of a body and leaves it at that."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % (size + 1000)
    )
    writer.write(b'{"prompt": "' + b"x" * size)
    return writer


class OpenLoop:
    """Requests that arrive at a rate, whatever becomes of the earlier ones."""

    def __init__(self, d: Deployment, asked: Sequence[Body], expected: Sequence[object]) -> None:
        self._d, self._asked, self._expected = d, asked, expected
        self._tasks: list[tuple[int, bool, asyncio.Task[Answer]]] = []

    async def run(self, rate: float, length_s: float) -> None:
        end = time.perf_counter() + length_s
        while time.perf_counter() < end:
            number = len(self._tasks)
            # No two share a cache, or the load would end with the first of each.
            low = number % 4 == 3
            one = self._asked[number % len(self._asked)] | {
                "cache_salt": str(number), "priority": int(low),
            }  # fmt: skip
            self._tasks.append((number, low, asyncio.create_task(self._d.ask(one))))
            await asyncio.sleep(1 / rate)

    async def results(self) -> list[tuple[bool, Answer]]:
        """Waits for all; asserts that who was served got the right answer."""
        done = []
        for number, low, task in self._tasks:
            answer = await task
            if answer.ok:
                assert answer.content == self._expected[number % len(self._asked)]
            done.append((low, answer))
        return done


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_retry_storm_passes(model: Path, tmp_path: Path) -> None:
    """One of two engines dies under load and comes back; the queue must melt again."""

    async def scenario() -> None:
        async with Deployment(tmp_path, model=model, gateway_flags=["--max-requests", "120"]) as d:
            rng = random.Random(9)
            asked = [
                b | {"prompt": [rng.randrange(256) for _ in range(800)], "n": 1}
                for b in bodies(20, 60)
            ]
            expected = await undisturbed(d, asked)
            salted = [b | {"cache_salt": f"c{i}"} for i, b in enumerate(asked * 3)]
            begin = time.perf_counter()
            await d.ask_all(salted)
            rate = 0.7 * len(salted) / (time.perf_counter() - begin)
            loop = OpenLoop(d, asked, expected)
            await loop.run(rate, 8)
            before_end = time.perf_counter()
            d.engines[0].kill()
            d.engines[0].start()
            reviving = asyncio.create_task(d.engines[0].ready())
            while not reviving.done():
                await loop.run(rate, 0.5)
            back = time.perf_counter()
            await loop.run(rate, 30)
            results = await loop.results()
            served = [a for _, a in results if a.ok]
            refused = [(low, a) for low, a in results if not a.ok]
            base = quantile([a.ttft_s for a in served if a.begin < before_end], 0.5)
            after = [a.ttft_s for a in served if a.begin > back + 20]
            settled = next(
                (
                    s
                    for s in range(30)
                    if quantile(
                        [a.ttft_s for a in served if back + s <= a.begin < back + s + 2] or [99],
                        0.5,
                    )
                    <= 2 * base + 0.1
                ),
                None,
            )
            record(
                "retry_storm", rate=round(rate, 1), requests=len(results), refused=len(refused),
                refused_low=sum(low for low, _ in refused), ttft_ms_before=round(1e3 * base),
                ttft_ms_20_s_after=milliseconds(after), settled_after_s=settled,
            )  # fmt: skip
            for _, answer in refused:
                assert answer.status in (429, 503), (answer.status, answer.error)
                assert "Retry-After" in answer.headers
            assert settled is not None, "it never came back to the old level"
            await d.idle()

    asyncio.run(scenario())
