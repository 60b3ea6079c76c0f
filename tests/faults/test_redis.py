"""Redis is soft state: whatever becomes of it, no request fails; nobody sees what is another's."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis.asyncio as redis
from tests.bounds import EVENTUALLY_S
from tests.faults.deployment import Deployment
from tests.faults.figures import record
from tests.faults.proxy import Proxy
from tests.faults.resp import Command, Tap, bulk
from tests.faults.steady_load import SteadyLoad
from tests.faults.workload import bodies
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.valkey import Valkey

PREFIX = "octavo:request:"
BODIES = [body | {"seed": i} for i, body in enumerate(bodies(10, 4))]


@dataclass(slots=True)
class World:
    """Gateways on a scripted engine, and a real Valkey behind the fault proxy."""

    deployment: Deployment
    valkey: Valkey
    proxy: Proxy
    tap: Tap
    admin: redis.Redis
    """A client that does not go through the proxy."""

    async def stored(self) -> set[str]:
        """Returns the ids of all records in Valkey."""
        return {
            key.decode().removeprefix(PREFIX) async for key in self.admin.scan_iter(PREFIX + "*")
        }

    async def finished_id(self, gateway: int = 0) -> str:
        """Runs a request to its end and returns its id once Valkey has its record."""
        answer = await self.deployment.ask(BODIES[0], gateway=gateway)
        name = answer.headers["X-Request-Id"]

        async def is_final() -> bool:
            return '"state":"finished"' in await text_of(self.admin, name)

        await until(is_final)
        return name

    async def shown(self, name: str) -> int:
        """Returns the status of a record's page at the second gateway, which has to ask Valkey.

        Asks again where a busy machine has missed the store's deadline.
        """
        async with asyncio.timeout(EVENTUALLY_S):
            while True:
                status, _ = await self.deployment.get(f"/v1/requests/{name}", gateway=1)
                if status != 503:
                    return status
                await asyncio.sleep(0.02)

    async def store_away(self, expected: bool, timeout_s: float = EVENTUALLY_S) -> None:
        """Waits until the gateway takes the store for away, or for back."""

        async def seen() -> bool:
            metric = await self.deployment.gateway.metric("octavo_gateway_store_away")
            return bool(metric) == expected

        await until(seen, timeout_s)


async def text_of(admin: redis.Redis, name: str) -> str:
    """Returns a record as Valkey has it; empty when it does not."""
    value = await admin.get(PREFIX + name)
    return value.decode() if isinstance(value, bytes) else ""


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = EVENTUALLY_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def world(folder: Path, *, gateways: int = 1, **settings: str) -> AsyncIterator[World]:
    valkey = Valkey(folder, **settings)
    tap = Tap()
    engine = await FakeEngine().start()
    try:
        async with (
            Proxy(valkey.port, tap.plan) as proxy,
            redis.from_url(valkey.url) as admin,
            Deployment(
                folder,
                through=[engine.address],
                gateways=gateways,
                redis=f"redis://{proxy.address}/0",
            ) as deployment,
        ):
            yield World(deployment, valkey, proxy, tap, admin)
    finally:
        valkey.stop()
        await engine.kill()


@asynccontextmanager
async def killed(w: World) -> AsyncIterator[None]:
    w.valkey.stop()
    yield
    w.valkey.start()


@asynccontextmanager
async def refused(w: World) -> AsyncIterator[None]:
    w.proxy.refuse()
    w.proxy.cut()
    yield
    await w.proxy.listen()


@asynccontextmanager
async def dropped(w: World) -> AsyncIterator[None]:
    w.proxy.hold()
    yield
    w.proxy.release()


@asynccontextmanager
async def frozen(w: World) -> AsyncIterator[None]:
    w.valkey.freeze()
    yield
    w.valkey.thaw()


@asynccontextmanager
async def slow(w: World) -> AsyncIterator[None]:
    async def late(command: Command, reply: bytes) -> bytes:
        await asyncio.sleep(2.0)
        return reply

    w.tap.answer = late
    yield
    w.tap.calm()
    w.proxy.cut()


@asynccontextmanager
async def full(w: World) -> AsyncIterator[None]:
    await w.admin.config_set("maxmemory", "1")
    yield
    await w.admin.config_set("maxmemory", "0")


Fault = Callable[[World], AbstractAsyncContextManager[None]]
FAULTS: list[Fault] = [killed, refused, dropped, frozen, slow, full]
QUICK = (killed, refused, slow)


async def outage(w: World, fault: Fault, length_s: float) -> tuple[SteadyLoad, float, float]:
    """Breaks Redis for a while under load; returns the load, and when it broke and healed."""
    async with SteadyLoad(w.deployment, BODIES) as load:
        await asyncio.sleep(min(2.0, length_s))
        broken_at = time.perf_counter()
        async with fault(w):
            await w.store_away(True)
            await asyncio.sleep(max(0.0, broken_at + length_s - time.perf_counter()))
            assert (await w.deployment.get("/readyz"))[0] == 200, "Redis does not decide that"
            asked = time.perf_counter()
            status, answer = await w.deployment.get(f"/v1/requests/{'0' * 32}")
            assert (status, answer["error"]["code"]) == (503, "record_unavailable")
            assert time.perf_counter() - asked < 1
            healed_at = time.perf_counter()
        await w.store_away(False)
    return load, broken_at, healed_at


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, id=f.__name__, marks=() if f in QUICK else (pytest.mark.faults,))
        for f in FAULTS
    ],
)
def test_no_request_fails_while_redis_is_away(fault: Fault, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            load, broken_at, _ = await outage(w, fault, 1.0)
            assert load.failed == []
            # What a server that died had taken is gone with it, but nothing that came later.
            since = broken_at if fault is killed else 0.0
            ids = {a.headers["X-Request-Id"] for a in load.answers if a.begin > since}

            async def all_written() -> bool:
                return ids <= await w.stored()

            await until(all_written)
            dropped = "octavo_gateway_records_dropped_total"
            assert await w.deployment.gateway.metric(dropped) == 0

    asyncio.run(scenario())


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: str(f.__name__))
def test_redis_away_for_half_a_minute(fault: Fault, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            load, broken_at, healed_at = await outage(w, fault, 30.0)
            record(f"redis_{fault.__name__}", **load.figures(broken_at, healed_at))
            assert load.failed == []

    asyncio.run(scenario())


def test_a_slow_redis_is_asked_each_thing_once_and_then_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.finished_id()  # opens a connection
            async with slow(w):
                w.tap.commands.clear()
                answers = [await w.deployment.ask(body) for body in BODIES]
                await w.store_away(True)
                await asyncio.sleep(1.0)
                asked = [tuple(c) for c in w.tap.commands if c[0].upper() in (b"SET", b"GET")]
            assert all(answer.ok for answer in answers)
            # The library would retry each ten times; the breaker tries after 0.25, 0.5, 1 s.
            assert max(Counter(asked).values()) == 1
            await w.store_away(False)

    asyncio.run(scenario())


def test_a_fail_over_loses_no_record_that_was_written_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            (folder := tmp_path / "new").mkdir()
            successor = Valkey(folder)
            try:
                await w.finished_id()
                # The old primary is told to follow another: it is read-only from now on.
                await w.admin.replicaof("127.0.0.1", 1)
                w.proxy.target = successor.port
                answer = await w.deployment.ask(BODIES[1])
                assert answer.ok
                async with redis.from_url(successor.url) as admin:

                    async def arrived() -> bool:
                        return "finished" in await text_of(admin, answer.headers["X-Request-Id"])

                    await until(arrived)
            finally:
                successor.stop()

    asyncio.run(scenario())


FOREIGN: dict[str, bytes | list[str] | None] = {
    "flushed": None,
    "not JSON": b"\x00\xff garbage",
    "another version": b'{"version":99,"id":"%s","state":"finished"}',
    "another shape": b"[1,2,3]",
    "missing fields": b'{"id":"%s"}',
    "a list": ["x"],
}


def test_foreign_values_count_as_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, gateways=2) as w:
            for kind, value in FOREIGN.items():
                name = await w.finished_id()
                key = PREFIX + name
                assert await w.shown(name) == 200
                await w.admin.delete(key)
                if isinstance(value, list):
                    await w.admin.rpush(key, *value)
                elif value is not None:
                    await w.admin.set(key, value.replace(b"%s", name.encode()), ex=60)
                assert await w.shown(name) == 404, kind
            assert (await w.deployment.ask(BODIES[0], gateway=1)).ok

    asyncio.run(scenario())


def test_a_neighbours_reply_is_never_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, gateways=2) as w:
            mine, other = await w.finished_id(), await w.finished_id()
            assert await w.shown(mine) == 200
            foreign = (await text_of(w.admin, other)).encode()

            async def mix_up(command: Command, reply: bytes) -> bytes:
                return bulk(foreign) if command[0].upper() == b"GET" else reply

            w.tap.answer = mix_up
            assert await w.shown(mine) == 404
            unreadable = "octavo_gateway_records_unreadable_total"
            assert await w.deployment.gateways[1].metric(unreadable) == 1
            w.tap.calm()
            assert await w.shown(mine) == 200

    asyncio.run(scenario())


@pytest.mark.faults
def test_a_neighbours_answer_is_never_given(tmp_path: Path) -> None:
    """The same for answers under idempotency keys: what does not name its key is none."""

    async def scenario() -> None:
        async with world(tmp_path, gateways=2) as w:
            keys = [{"Idempotency-Key": name} for name in ("mine", "others")]
            mine, other = [
                await w.deployment.ask(body, key)
                for body, key in zip((BODIES[0], BODIES[2]), keys, strict=True)
            ]
            assert mine.content != other.content
            await asyncio.sleep(0.5)
            values = [await w.admin.get(k) async for k in w.admin.scan_iter("octavo:once:*")]
            assert len(values) >= 2
            finished = [v for v in values if isinstance(v, bytes) and b"finished" in v]

            async def mix_up(command: Command, reply: bytes) -> bytes:
                if command[0].upper() != b"GET":
                    return reply
                return bulk(next((v for v in finished if v not in reply), None))

            w.tap.answer = mix_up
            again = await w.deployment.ask(BODIES[0], keys[0], gateway=1)
            assert again.ok
            assert again.content == mine.content
            w.tap.calm()
            replayed = await w.deployment.ask(BODIES[2], keys[1], gateway=1)
            assert replayed.content == other.content

    asyncio.run(scenario())


def test_everything_stored_expires_and_evictions_hurt_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, maxmemory_policy="allkeys-lru") as w:
            async with SteadyLoad(w.deployment, BODIES, pause_s=0.005) as load:
                memory = (await w.admin.info("memory"))["used_memory"]
                await w.admin.config_set("maxmemory", memory + 100_000)
                await asyncio.sleep(2.0)
                ttls = [await w.admin.ttl(key) async for key in w.admin.scan_iter("octavo:*")]
                evicted = (await w.admin.info("stats"))["evicted_keys"]
            assert load.failed == []
            assert evicted > 0
            assert -1 not in ttls, "a key that never expires; -2 is one that was evicted meanwhile"

    asyncio.run(scenario())
