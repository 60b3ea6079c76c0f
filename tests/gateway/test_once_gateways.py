"""Keyed requests to two gateways with one Valkey and fake engines, which answer by seed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.bounds import EVENTUALLY_S
from tests.gateway import harness
from tests.gateway.api.scripted import Response, ask
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import until
from tests.gateway.script import Script
from tests.gateway.valkey import Valkey

from octavo.gateway.admission import Admission
from octavo.gateway.api.events import KEEP_ALIVE
from octavo.gateway.app import build_app
from octavo.gateway.claims import Claims
from octavo.gateway.config import GatewayConfig
from octavo.gateway.idempotency import KEY_PREFIX, decode, key_digest
from octavo.gateway.once import Once
from octavo.gateway.redis_store import RedisStore
from octavo.gateway.store import Item
from octavo.runtime.env import SystemEnv

NUM_TOKENS = 20
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


pytestmark = pytest.mark.usefixtures("quick_claims")


class Served:
    """One gateway with its app."""

    def __init__(self, gateway: harness.Gateway, store: RedisStore) -> None:
        env = SystemEnv()
        config = GatewayConfig(heartbeat_s=0.1)
        metrics = gateway.metrics
        self.gateway = gateway
        self.once = Once(
            gateway.dispatcher,
            Claims(store, metrics=metrics, owner=env.new_id(), ttl_s=60),
            metrics=metrics,
            env=env,
            ttl_s=60,
            grace_s=5,
        )
        self.app = build_app(
            config=config,
            admission=Admission(
                max_requests=99, max_body_bytes_total=config.max_body_bytes_total, metrics=metrics
            ),
            fleet=gateway.fleet,
            dispatcher=gateway.dispatcher,
            once=self.once,
            records=gateway.records,
            env=env,
        )

    async def complete(self, key: str, *, prompt: str = "Once", **more: Any) -> Response:
        leaves = more.pop("leaves", lambda _: False)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": NUM_TOKENS, **more}
        return await ask(
            self.app,
            "POST",
            "/v1/completions",
            json.dumps(body).encode(),
            headers={"idempotency-key": key},
            leaves=leaves,
        )

    def die(self) -> None:
        """Ends everything that runs, without a word to the store."""
        for task in list(self.once._tasks.values()):
            task.cancel()
        for timer in self.once._timers.values():
            timer.cancel()

    def outcome(self, name: str) -> float:
        return self.gateway.metric("idempotent_requests_total", outcome=name)


@asynccontextmanager
async def two(
    valkey: Valkey, *, delay_s: float = 0.02
) -> AsyncIterator[tuple[Served, Served, FakeEngine]]:
    """Two gateways in front of one engine."""
    engine = FakeEngine(script=lambda _: Script(delay_s=delay_s))
    stores = RedisStore(valkey.url), RedisStore(valkey.url)
    async with AsyncExitStack() as stack:
        for store in stores:
            stack.push_async_callback(store.close)
        await stack.enter_async_context(asyncio.timeout(EVENTUALLY_S))
        first = await stack.enter_async_context(harness.gateway(engine, store=stores[0]))
        second = await stack.enter_async_context(harness.gateway(engine.address, store=stores[1]))
        served = Served(first, stores[0]), Served(second, stores[1])
        try:
            yield *served, engine
        finally:
            for one in served:
                await one.once.close(1.0)
                one.once.check_integrity()
        for one in served:
            one.gateway.check_idle()


def shown(response: Response) -> bytes:
    """The body without comments."""
    return response.body.replace(KEEP_ALIVE, b"")


def some(response: Response) -> bool:
    return response.body.count(b"data:") >= 5


@pytest.mark.parametrize("more", [STREAM, {}], ids=["stream", "whole"])
def test_a_retry_at_another_gateway_waits_and_gets_the_same_bytes(
    valkey: Valkey, more: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b, engine):
            key = f"waits-{len(more)}"
            first = asyncio.create_task(a.complete(key, **more))
            await until(lambda: engine.num_running == 1)
            second = await b.complete(key, **more)
            assert shown(await first) == shown(second)
            assert second.headers["x-request-id"] == (await first).headers["x-request-id"]
            assert second.headers["idempotency-replayed"] == "true"
            third = await b.complete(key, **more)
            assert shown(third) == shown(second)
            assert len(engine.requests) == 1

    asyncio.run(scenario())


def test_five_at_both_gateways_are_one_generation(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b, engine):
            answers = await asyncio.gather(*(g.complete("five", **STREAM) for g in (a, b, a, b, a)))
            assert len({shown(r) for r in answers}) == 1
            assert all(r.complete for r in answers)
            assert len(engine.requests) == 1

    asyncio.run(scenario())


def test_a_client_that_left_one_gateway_gets_its_answer_at_the_other(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b, engine):
            left = await a.complete("left", leaves=some, **STREAM)
            assert not left.complete
            retry = await b.complete("left", **STREAM)
            assert retry.complete
            assert shown(retry).startswith(shown(left))
            assert len(engine.requests) == 1

    asyncio.run(scenario())


def test_when_the_owner_dies_another_gives_the_same_answer(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b, engine):
            undisturbed = await a.complete("undisturbed", seed=5, **STREAM)
            cut = asyncio.create_task(a.complete("dies", seed=5, leaves=some, **STREAM))
            drawn = asyncio.create_task(a.complete("drawn", leaves=some, **STREAM))
            broken = [await cut, await drawn]
            a.die()
            retry, again = await asyncio.gather(
                b.complete("dies", seed=5, **STREAM), b.complete("drawn", **STREAM)
            )
            for answer, part in zip((retry, again), broken, strict=True):
                assert answer.complete
                assert shown(answer).startswith(shown(part))
                assert answer.headers["x-request-id"] == part.headers["x-request-id"]
            assert [c["choices"] for c in retry.chunks] == [
                c["choices"] for c in undisturbed.chunks
            ]
            assert b.outcome("generated_again") == 2
            for answer in (retry, again):
                name = answer.headers["x-request-id"]
                tries = [r for r in engine.requests if r.request_id == name]
                assert len(tries) == 2
                assert len({r.sampling.seed for r in tries}) == 1
                assert tries[0].attempt < tries[1].attempt

    asyncio.run(scenario())


def test_a_client_that_waits_for_a_dead_owner_gets_comments_and_then_the_answer(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.gateway.api.answer.HOLD_S", 0.1)

    async def scenario() -> None:
        async with two(valkey, delay_s=0.1) as (a, b, _):
            part = await a.complete("comments", leaves=some, **STREAM)
            waiting = asyncio.create_task(b.complete("comments", **STREAM))
            await asyncio.sleep(0.1)
            a.die()
            answer = await waiting
            assert answer.body.count(KEEP_ALIVE) >= 3
            assert shown(answer).startswith(shown(part))
            assert answer.complete

    asyncio.run(scenario())


def test_another_body_at_another_gateway_is_refused(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b, engine):
            assert (await a.complete("body")).status == 200
            response = await b.complete("body", prompt="Twice")
            assert response.status == 422
            assert (await b.complete("body")).status == 200
            assert len(engine.requests) == 1

    asyncio.run(scenario())


def test_an_answer_that_failed_at_one_gateway_is_generated_at_the_other(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b, engine):
            running = asyncio.create_task(a.complete("fails", **STREAM))
            await until(lambda: engine.num_running == 1)
            await asyncio.sleep(0.1)
            a.gateway.dispatcher.abort()  # as at the end of a drain
            broken = await running
            assert broken.chunks[-1]["error"]["code"] == "draining"
            retry = await b.complete("fails", **STREAM)
            assert retry.complete
            assert retry.headers["x-request-id"] == broken.headers["x-request-id"]
            assert len({r.sampling.seed for r in engine.requests}) == 1

    asyncio.run(scenario())


def test_while_the_store_is_away_requests_are_served_and_kept_here(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Valkey(tmp_path)
        async with two(server, delay_s=0.0) as (a, b, engine):
            server.stop()
            first = await a.complete("away", **STREAM)
            second = await a.complete("away", **STREAM)
            assert first.complete
            assert shown(first) == shown(second)
            assert len(engine.requests) == 1
            assert (await b.complete("away", **STREAM)).complete
            assert len(engine.requests) == 2
            assert a.outcome("unclaimed") == 1
            server.start()

    asyncio.run(scenario())
    Valkey(tmp_path).stop()


def test_a_damaged_entry_is_generated_anew(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b, engine):
            assert (await a.complete("damaged")).status == 200
            store = RedisStore(valkey.url)
            key = key_digest("", "damaged")
            name = KEY_PREFIX + key
            while True:  # the answer is written after it is given
                value = await store.get(name) or b""
                entry = decode(value, key=key)
                if entry is not None and entry.state == "finished":
                    break
                await asyncio.sleep(0.02)
            await store.put_many([Item(name, value[:-3] + b"xyz", 50)])
            await store.close()
            assert (await b.complete("damaged")).status == 200
            assert b.outcome("unreadable") >= 1
            assert len(engine.requests) == 2

    asyncio.run(scenario())
