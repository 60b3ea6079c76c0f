"""The Redis model against a real server, and the project's store over it."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
import redis.asyncio as redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from tests.gateway.valkey import Valkey
from tests.sim.loop import SimLoop, run
from tests.sim.net import Net
from tests.sim.redis_model import RedisModel

from octavo.gateway.redis_store import RedisStore
from octavo.gateway.store import Item, StoreUnavailableError

URL = "redis://redis:6379/0"
Operation: TypeAlias = tuple[str | bytes | int, ...]
WAIT = "wait"


def in_model(scenario: Callable[[RedisModel], Awaitable[None]], *, seed: int = 0) -> None:
    """Runs a scenario with a model in a new net."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        await scenario(RedisModel(Net(loop, random.Random(seed))))

    run(main, rng=random.Random(seed))


def connect(url: str, protocol: int) -> "redis.Redis":
    return redis.Redis.from_url(url, protocol=protocol, retry=Retry(NoBackoff(), 0))


async def ask(client: "redis.Redis", operation: Operation) -> object:
    """Returns the answer; errors are answers, too."""
    try:
        answer: object = await client.execute_command(*operation)  # type: ignore[no-untyped-call]
    except (RedisError, ValueError, TypeError, AttributeError) as error:
        # The client itself stumbles over some replies inside a transaction.
        return type(error).__name__, str(error)
    return answer


async def replies(url: str, protocol: int, operations: Sequence[Operation]) -> list[object]:
    """Runs a list on one connection of an emptied server."""
    client = connect(url, protocol)
    answers: list[object] = []
    try:
        async with client.client() as one:
            assert await ask(one, ("FLUSHALL",)) is True
            for operation in operations:
                if operation[0] == WAIT:
                    await asyncio.sleep(float(operation[1]) / 1000)
                else:
                    answers.append(_comparable(operation, await ask(one, operation)))
    finally:
        await client.aclose(close_connection_pool=True)
    return answers


def _comparable(operation: Operation, answer: object) -> object:
    """Takes out what no two servers agree on: the order of keys, milliseconds."""
    name = operation[0]
    if name == "KEYS" and isinstance(answer, list):
        return sorted(answer)
    if name == "SCAN" and isinstance(answer, (list, tuple)):
        return answer[0], sorted(answer[1])
    if name == "PTTL" and isinstance(answer, int) and answer > 0:
        return round(answer / 1000)
    return answer


KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from(
    [b"", b"x", b"7", b"-3", b"007", b"+1", b"9223372036854775807", b"\xff\r\n"]
)
# Far from every boundary, so that milliseconds of the real server decide nothing.
SECONDS = st.sampled_from([b"100", b"0", b"-1", b"x", b"1000", b"9223372036854775807"])
MILLIS = st.sampled_from([b"100000", b"0", b"-5", b"1.5", b"500000", b"9223372036854775807"])
OPTIONS = st.one_of(
    st.sampled_from([("NX",), ("XX",), ("GET",), ("KEEPTTL",), ("FOO",), ("EX",), ("nx",)]),
    st.tuples(st.just("EX"), SECONDS),
    st.tuples(st.just("PX"), MILLIS),
)
OPERATIONS = st.one_of(
    st.builds(
        lambda key, value, options: ("SET", key, value, *(x for o in options for x in o)),
        KEYS,
        VALUES,
        st.lists(OPTIONS, max_size=3),
    ),
    st.tuples(st.sampled_from(["GET", "TTL", "PTTL", "TYPE", "INCR", "HGETALL"]), KEYS),
    st.builds(
        lambda name, keys: (name, *keys),
        st.sampled_from(["DEL", "EXISTS", "MGET"]),
        st.lists(KEYS, max_size=3),
    ),
    st.tuples(st.just("EXPIRE"), KEYS, SECONDS),
    st.tuples(st.just("PEXPIRE"), KEYS, MILLIS),
    st.tuples(st.just("INCRBY"), KEYS, VALUES),
    st.tuples(st.just("LPUSH"), KEYS, VALUES, VALUES),
    st.tuples(st.just("HSET"), KEYS, VALUES, VALUES),
    st.sampled_from(
        [
            ("MULTI",),
            ("EXEC",),
            ("DISCARD",),
            ("DBSIZE",),
            ("KEYS", "*"),
            ("KEYS", "[ab]"),
            ("SCAN", "0"),
            ("SCAN", "0", "MATCH", "?", "COUNT", "50"),
            ("SCAN", "x"),
            ("PING",),
            ("PING", "hi"),
            ("PING", "a", "b"),
            ("SELECT", "1"),
            ("SELECT", "0"),
            ("SELECT", "99"),
            ("SELECT", "x"),
            ("NOSUCH", "a", "b"),
            ("GET",),
            ("SET", "a"),
            ("HSET", "a", "b"),
            ("EXPIRE", "a"),
            ("FLUSHALL",),
            ("FLUSHALL", "x"),
            ("CLIENT", "NOSUCH"),
            ("AUTH", "x", "y"),
            ("AUTH", "default", "y"),
        ]
    ),
)


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


def compare(valkey: Valkey, protocol: int, operations: Sequence[Operation]) -> None:
    real = asyncio.run(replies(valkey.url, protocol, operations))
    model: list[object] = []

    async def scenario(_: RedisModel) -> None:
        model.extend(await replies(URL, protocol, operations))

    in_model(scenario)
    assert model == real


@settings(
    max_examples=150,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=30), protocol=st.sampled_from([2, 3]))
def test_the_model_answers_like_a_real_server(
    valkey: Valkey, operations: list[Operation], protocol: int
) -> None:
    compare(valkey, protocol, operations)


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_model_forgets_like_a_real_server(valkey: Valkey, protocol: int) -> None:
    operations: list[Operation] = [
        ("SET", "short", "x", "PX", 60),
        ("SET", "kept", "x", "PX", 60),
        ("SET", "kept", "y", "KEEPTTL"),
        ("SET", "freed", "x", "PX", 60),
        ("SET", "freed", "y"),
        ("SET", "long", "x", "EX", 100),
        ("INCR", "n"),
        ("PEXPIRE", "n", 60),
        ("INCR", "n"),
        ("LPUSH", "list", "x"),
        ("PEXPIRE", "list", 60),
        ("TTL", "long"),
        ("PTTL", "long"),
        ("DBSIZE",),
        (WAIT, 120),
        ("GET", "short"),
        ("GET", "kept"),
        ("GET", "freed"),
        ("TTL", "freed"),
        ("TTL", "short"),
        ("EXISTS", "long", "list"),
        ("TYPE", "list"),
        ("INCR", "n"),
        ("TTL", "n"),
        ("SET", "short", "again", "NX"),
        ("SET", "kept", "again", "XX"),
        ("KEYS", "*"),
    ]
    compare(valkey, protocol, operations)


def test_a_replica_and_a_full_server_refuse_like_real_ones(tmp_path: Path) -> None:
    operations: list[Operation] = [
        ("GET", "a"),
        ("SET", "a", "b"),
        ("LPUSH", "a", "b"),
        ("INCR", "a"),
        ("DEL", "a"),
        ("EXPIRE", "a", "5"),
        ("MULTI",),
        ("SET", "a", "b"),
        ("EXEC",),
    ]
    real = Valkey(tmp_path, maxmemory="1")
    try:
        full = asyncio.run(refusals(real.url, operations))
        asyncio.run(refusals(real.url, [("REPLICAOF", "127.0.0.1", "9")]))
        replica = asyncio.run(refusals(real.url, operations))
    finally:
        real.stop()

    async def scenario(model: RedisModel) -> None:
        model.full = True
        assert await refusals(URL, operations) == full
        model.full, model.readonly = False, True
        assert await refusals(URL, operations) == replica

    in_model(scenario)
    assert ("OutOfMemoryError", "command not allowed when used memory > 'maxmemory'.") in full
    assert any(isinstance(a, tuple) and a[0] == "ReadOnlyError" for a in replica)


async def refusals(url: str, operations: Sequence[Operation]) -> list[object]:
    """Runs a list on a server that cannot be emptied."""
    client = connect(url, 3)
    try:
        async with client.client() as one:
            return [await ask(one, operation) for operation in operations]
    finally:
        await client.aclose(close_connection_pool=True)


def item(key: str, value: bytes = b"v") -> Item:
    return Item(key=key, value=value, ttl_s=60)


async def timed(work: Awaitable[object]) -> tuple[object, float]:
    """Returns what came out and the virtual seconds it took."""
    clock = asyncio.get_running_loop().time
    begin = clock()
    try:
        result = await work
    except StoreUnavailableError as error:
        result = error
    return result, clock() - begin


def test_the_store_runs_unchanged_over_the_model() -> None:
    async def scenario(model: RedisModel) -> None:
        store = RedisStore(URL)
        await store.put_many([item(f"k{i}", b"%d" % i) for i in range(100)])
        gets = await asyncio.gather(*(store.get(f"k{i}") for i in range(20)))
        assert gets == [b"%d" % i for i in range(20)]
        assert await store.get("none") is None
        ttls = dict(model.keys()).values()
        assert all(ttl is not None and 59 < ttl <= 60 for ttl in ttls)
        sets = [c for c in model.commands if c.args[0] == b"SET"]
        assert len(sets) == 100
        assert {c.host for c in model.commands} == {"local"}
        await asyncio.sleep(60)
        assert await store.get("k1") is None
        assert not model.keys()
        await store.close()

    in_model(scenario)


def test_a_slow_server_costs_a_read_its_deadline_once_and_each_command_runs_once() -> None:
    async def scenario(model: RedisModel) -> None:
        store = RedisStore(URL)
        await store.put_many([item("a")])
        model.slow_s = 2.0
        error, took = await timed(store.get("a"))
        assert isinstance(error, StoreUnavailableError)
        assert took == pytest.approx(0.05)
        error, took = await timed(store.get("a"))
        assert isinstance(error, StoreUnavailableError)
        assert took == 0.0, "the breaker is open"
        await asyncio.sleep(5)
        assert sum(c.args[0] == b"GET" for c in model.commands) == 1
        model.slow_s = 0.0
        assert await store.get("a") == b"v"
        assert not store.breaker.is_open
        await store.close()

    in_model(scenario)


def test_replies_never_overtake_each_other() -> None:
    async def scenario(model: RedisModel) -> None:
        client = connect(URL, 3)
        async with client.client() as one:
            await one.set("a", "1")
            connection = one.connection
            assert connection is not None
            model.slow_s = 1.0
            await connection.send_command("GET", "a")
            await asyncio.sleep(0.1)
            model.slow_s = 0.0
            await connection.send_command("SET", "a", "2")
            assert [await connection.read_response() for _ in range(2)] == [b"1", b"OK"]
        await client.aclose(close_connection_pool=True)

    in_model(scenario)


@pytest.mark.parametrize("fault", ["killed", "stopped", "cut", "full", "readonly"])
def test_the_store_survives_each_fault_and_comes_back(fault: str) -> None:
    async def scenario(model: RedisModel) -> None:
        store = RedisStore(URL)
        await store.put_many([item("a")])
        match fault:
            case "killed":
                model.net.kill_host("redis")
            case "stopped":
                model.net.pause_host("redis")
            case "cut":
                model.net.cut("redis", "local")
            case "full":
                model.full = True
            case "readonly":
                model.readonly = True
        error, took = await timed(store.put_many([item("b")]))
        assert isinstance(error, StoreUnavailableError)
        assert took <= 0.25
        await asyncio.sleep(10)
        model.full = model.readonly = False
        model.net.heal_all()
        model.net.resume_host("redis")
        if fault == "killed":
            model.start()
        await store.put_many([item("c")])
        assert await store.get("c") == b"v"
        await store.close()
        await asyncio.sleep(1)
        assert not model.net.conns

    in_model(scenario)


def test_foreign_values_empty_servers_and_replies_of_a_neighbour() -> None:
    async def scenario(model: RedisModel) -> None:
        store = RedisStore(URL)
        await store.put_many([item("a", b"A"), item("b", b"B"), item("c", b"C")])
        model.corrupt(b"a")
        model.corrupt(b"b", [b"list"])
        assert await store.get("a") == b"\xff\x00not a record"
        assert await store.get("b") is None, "a wrong type counts as none"
        assert await store.get("c") == b"C"
        model.num_mixed = 1
        assert await store.get("a") == b"C", "the model mixed two replies up"
        assert await store.get("c") == b"C"
        assert model.num_mixed == 0
        model.flush()
        assert await store.get("c") is None
        assert model.value(b"c") is None
        await store.close()

    in_model(scenario)
