import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.bounds import EVENTUALLY_S
from tests.gateway.valkey import Valkey

from octavo.gateway.redis_store import FIRST_REST_S, LAST_REST_S, Breaker, RedisStore
from octavo.gateway.store import Item, StoreUnavailableError
from octavo.v1.errors import OctavoError


async def command(valkey: Valkey, *words: str) -> object:
    """One command on a connection of its own, as a person would type it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", valkey.port)
    writer.write((" ".join(words) + "\r\n").encode())
    answer = (await reader.readline()).decode().strip()
    writer.close()
    await writer.wait_closed()
    return answer


def test_values_come_back_and_have_a_life_time(valkey: Valkey) -> None:
    async def scenario() -> None:
        store = RedisStore(valkey.url)
        await store.put_many([Item("a", b"\x00one", 50), Item("b", b"two", 60)])
        assert await store.get("a") == b"\x00one"
        assert await store.get("missing") is None
        assert await command(valkey, "TTL", "a") in (":49", ":50")
        await store.close()

    asyncio.run(scenario())


def test_a_value_of_another_type_counts_as_none(valkey: Valkey) -> None:
    async def scenario() -> None:
        store = RedisStore(valkey.url)
        await command(valkey, "LPUSH", "list", "x")
        assert await store.get("list") is None
        assert not store.breaker.is_open
        await store.put_many([Item("list", b"now a string", 50)])
        assert await store.get("list") == b"now a string"
        await store.close()

    asyncio.run(scenario())


def test_a_frozen_server_costs_its_deadline_once_and_then_nothing(valkey: Valkey) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        store = RedisStore(valkey.url)
        await store.put_many([Item("a", b"one", 50)])
        valkey.freeze()
        try:
            started = loop.time()
            with pytest.raises(StoreUnavailableError):
                await store.get("a")
            assert loop.time() - started < 2.0
            started = loop.time()
            for _ in range(100):
                with pytest.raises(StoreUnavailableError):
                    await store.get("a")
            assert loop.time() - started < 2.0
        finally:
            valkey.thaw()
        await asyncio.sleep(FIRST_REST_S)
        assert await store.get("a") == b"one"
        await store.close()

    asyncio.run(scenario())


def test_a_claim_waits_no_longer_for_a_frozen_server(valkey: Valkey) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        store = RedisStore(valkey.url)
        await store.put_many([Item("a", b"one", 50)])
        valkey.freeze()
        try:
            started = loop.time()
            with pytest.raises(StoreUnavailableError):
                await store.put_if_absent(Item("b", b"two", 50))
            assert loop.time() - started < 2.0
        finally:
            valkey.thaw()
        await store.close()

    asyncio.run(scenario())


def test_a_stall_of_this_process_is_not_held_against_the_server(valkey: Valkey) -> None:
    async def scenario() -> None:
        store = RedisStore(valkey.url)
        await store.put_many([Item("a", b"one", 50)])
        reading = asyncio.create_task(store.get("a"))
        await asyncio.sleep(0)  # it has asked
        time.sleep(0.2)  # noqa: ASYNC251  four times its deadline, while the answer comes in
        assert await reading == b"one"
        assert not store.breaker.is_open
        await store.close()

    asyncio.run(scenario())


def test_a_restarted_server_is_used_again(valkey: Valkey) -> None:
    async def scenario() -> None:
        store = RedisStore(valkey.url)
        await store.put_many([Item("a", b"one", 50)])
        valkey.stop()
        with pytest.raises(StoreUnavailableError):
            await store.put_many([Item("a", b"two", 50)])
        valkey.start()
        await asyncio.sleep(FIRST_REST_S)
        await store.put_many([Item("a", b"three", 50)])
        assert await store.get("a") == b"three"
        await store.close()

    asyncio.run(scenario())


def test_a_server_that_became_a_replica_is_left(valkey: Valkey) -> None:
    async def scenario() -> None:
        store = RedisStore(valkey.url)
        await store.put_many([Item("a", b"one", 50)])
        await command(valkey, "REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreUnavailableError):
            await store.put_many([Item("a", b"two", 50)])
        await command(valkey, "REPLICAOF", "NO", "ONE")
        await asyncio.sleep(FIRST_REST_S)
        await store.put_many([Item("a", b"two", 50)])
        await store.close()

    asyncio.run(scenario())


def test_a_full_server_counts_as_away(tmp_path: Path) -> None:
    server = Valkey(tmp_path, maxmemory="1mb")

    async def scenario() -> None:
        store = RedisStore(server.url)
        with pytest.raises(StoreUnavailableError):
            await store.put_many([Item(f"k{i}", bytes(100_000), 50) for i in range(50)])
        await store.close()

    try:
        asyncio.run(scenario())
    finally:
        server.stop()


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@host",
        "redis://:secret/x@host:6379/0",
        "redis://:secret#x@host:6379/0",
        "redis://:secret?x@host:6379/0",
        "redis://:1?secret=x@host:6379/0",
        "redis://[secret",
        "secret",
    ],
)
def test_a_senseless_address_stops_the_start_without_showing_it(url: str) -> None:
    with pytest.raises(OctavoError, match="written as %XX") as caught:
        RedisStore(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_breaker_rests_longer_after_each_failure_up_to_a_bound() -> None:
    breaker, now = Breaker(), 100.0
    rests = []
    for _ in range(8):
        assert breaker.allow(now)
        breaker.failed(now)
        assert not breaker.allow(now)
        start = now
        while not breaker.allow(now):
            now += 0.01
        rests.append(round(now - start, 1))
        now += 10
    assert rests[0] == pytest.approx(FIRST_REST_S, abs=0.06)
    assert rests == sorted(rests)
    assert rests[-1] == pytest.approx(LAST_REST_S, abs=0.06)


def test_a_half_open_breaker_lets_one_caller_try() -> None:
    breaker = Breaker()
    breaker.failed(0.0)
    assert breaker.allow(1.0)
    assert not breaker.allow(1.0)
    breaker.succeeded()
    assert breaker.allow(1.0)
    assert breaker.allow(1.0)


def test_a_key_can_be_taken_once_and_renewed_while_it_lives(valkey: Valkey) -> None:
    async def scenario() -> None:
        store = RedisStore(valkey.url)
        taken = await asyncio.gather(
            *(store.put_if_absent(Item("lease", b"%d" % i, 1)) for i in range(4))
        )
        assert sorted(taken) == [False, False, False, True]
        assert await store.get("lease") == b"%d" % taken.index(True)
        assert await store.renew("lease", 70)
        assert await command(valkey, "TTL", "lease") in (":69", ":70")
        assert not await store.renew("nothing", 70)
        await command(valkey, "LPUSH", "a-list", "x")
        assert not await store.put_if_absent(Item("a-list", b"x", 1))
        await store.close()

    asyncio.run(scenario())


def test_a_taken_key_is_free_when_its_time_is_over(valkey: Valkey) -> None:
    async def scenario() -> None:
        store = RedisStore(valkey.url)
        assert await store.put_if_absent(Item("short", b"1", 1))
        async with asyncio.timeout(EVENTUALLY_S):
            while not await store.put_if_absent(Item("short", b"2", 50)):
                await asyncio.sleep(0.02)
        assert await store.get("short") == b"2"
        await store.close()

    asyncio.run(scenario())


def test_taking_and_renewing_fail_while_the_server_is_frozen(valkey: Valkey) -> None:
    async def scenario() -> None:
        store = RedisStore(valkey.url)
        valkey.freeze()
        try:
            with pytest.raises(StoreUnavailableError):
                await store.put_if_absent(Item("frozen", b"1", 1))
            with pytest.raises(StoreUnavailableError):
                await store.renew("frozen", 1)
        finally:
            valkey.thaw()
        await store.close()

    asyncio.run(scenario())


def test_a_cancelled_task_ends_wherever_its_command_is(valkey: Valkey) -> None:
    """The client alone lets one in thirty of these go on."""

    async def renewing(store: RedisStore) -> None:
        while True:
            with suppress(StoreUnavailableError):
                await store.renew("a", 100)
                await store.put_many([Item("b", b"1", 100)])
            await asyncio.sleep(0)

    async def scenario() -> None:
        store = RedisStore(valkey.url)
        await store.put_many([Item("a", b"1", 100)])
        for round_ in range(500):
            task = asyncio.create_task(renewing(store))
            for _ in range(round_ % 14):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=5)
            assert task.cancelled(), round_
        assert not store.breaker.is_open
        assert await store.get("a") == b"1"
        await store.close()

    asyncio.run(scenario())


def test_a_burst_of_writers_takes_turns_and_is_no_fault_of_the_server(valkey: Valkey) -> None:
    async def scenario() -> None:
        store = RedisStore(valkey.url)
        taken = await asyncio.gather(
            *(store.put_if_absent(Item(f"burst:{i}", b"x", 50)) for i in range(400))
        )
        assert all(taken)
        assert not store.breaker.is_open
        await store.close()

    asyncio.run(scenario())
