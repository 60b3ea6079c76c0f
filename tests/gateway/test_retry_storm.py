"""More work than two engines can do, from clients that come back: it must not outlast its cause."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import httpx
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.script import Script
from tests.gateway.test_process import chat, ready, serving

from octavo.v1 import engine_pb2
from octavo.v1.errors import QUEUE_FULL, OctavoError

SERVICE_S = 0.02
QUEUE = 20
BURST = 150
CAP = 30


class Limited:
    """Serves one request after the other, each SERVICE_S long; refuses when too many wait."""

    def __init__(self) -> None:
        self.engine = FakeEngine(script=self._script)
        self.waits: list[float] = []
        """What each request waited for those before it: its time to first token."""
        self.refused = 0
        self._free_at = 0.0

    def _script(self, request: engine_pb2.GenerateRequest) -> Script:
        now = time.monotonic()
        wait = max(0.0, self._free_at - now)
        queued = wait / SERVICE_S
        if queued > QUEUE:
            self.refused += 1
            error = OctavoError(
                QUEUE_FULL,
                queued=int(queued),
                limit=QUEUE,
                unit="requests",
                retry_after_ms=int(wait * 1000) + 1,
            )
            return Script(refuse=error)
        self.waits.append(wait)
        self._free_at = now + wait + SERVICE_S
        return Script(first_delay_s=wait + SERVICE_S, tokens=2)


async def persistent(client: httpx.AsyncClient, seed: int, seen: Counter[str]) -> None:
    """Asks until it is served, as SDKs do: again after the time in Retry-After."""
    while True:
        body = chat(messages=[{"role": "user", "content": f"{seed} asks"}])
        answer = await client.post("/v1/chat/completions", json=body)
        seen[str(answer.status_code)] += 1
        if answer.status_code == 200:
            return
        code = answer.json()["error"]["code"]
        seen[code] += 1
        assert code in (
            "overloaded",
            "queue_full",
            "engine_failure",
            "no_engine",
            "model_loading",
        ), code
        after = answer.headers["retry-after"]
        assert 1 <= int(after) <= 30
        seen[f"after {after}"] += 1
        await asyncio.sleep(int(after))


def test_a_storm_of_retries_is_turned_away_early_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        parts = [Limited(), Limited()]
        engines = [await part.engine.start() for part in parts]
        flags = ("--max-requests", str(CAP), "--log-level", "warning")
        async with serving(*engines, flags=flags) as (_, client):
            await ready(client)
            client.timeout = httpx.Timeout(60)
            async with httpx.AsyncClient(
                base_url=client.base_url,
                limits=httpx.Limits(max_connections=None),
                timeout=httpx.Timeout(60),
            ) as crowd:
                seen: Counter[str] = Counter()
                asking = [asyncio.create_task(persistent(crowd, i, seen)) for i in range(BURST)]
                while seen["200"] < BURST / 4:
                    await asyncio.sleep(0.01)
                await engines[0].kill()
                while seen["200"] < BURST / 2:
                    await asyncio.sleep(0.01)
                await engines[0].restart()
                await asyncio.gather(*asking)
            assert seen["200"] == BURST
            assert seen["overloaded"] > BURST / 4, "most were refused before their body was read"
            spread = [key for key in seen if key.startswith("after ")]
            assert len(spread) >= 3, "they were not all told the same time"
            received = sum(len(engine.requests) for engine in engines)
            refused = sum(part.refused for part in parts)
            assert received - refused < BURST + CAP + 10, "nothing was served twice but what died"
            assert refused < BURST
            # The burst is over: the first that comes finds empty queues at once.
            before = [len(part.waits) for part in parts]
            for _ in range(10):
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            after = [w for part, n in zip(parts, before, strict=True) for w in part.waits[n:]]
            assert len(after) == 10
            assert max(after) <= 2 * SERVICE_S

    asyncio.run(asyncio.wait_for(scenario(), 100))
