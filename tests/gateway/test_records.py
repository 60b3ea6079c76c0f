import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.bounds import EVENTUALLY_S
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import gateway, prompt, until
from tests.gateway.valkey import Valkey

from octavo.gateway import records as module
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.records import KEY_PREFIX, OPEN_TTL_S, Record, Records
from octavo.gateway.redis_store import RedisStore
from octavo.gateway.store import Item, Store, StoreUnavailableError
from octavo.v1.errors import RECORD_UNAVAILABLE, OctavoError


class MemoryStore:
    """A store in a dictionary that can be away."""

    def __init__(self) -> None:
        self.values: dict[str, Item] = {}
        self.away = False
        self.batches: list[int] = []

    async def put_many(self, items: Sequence[Item]) -> None:
        if self.away:
            raise StoreUnavailableError("away")
        self.batches.append(len(items))
        self.values.update({item.key: item for item in items})

    async def get(self, key: str, *, patient: bool = False) -> bytes | None:
        if self.away:
            raise StoreUnavailableError("away")
        item = self.values.get(key)
        return item.value if item else None

    async def put_if_absent(self, item: Item) -> bool:
        return self.values.setdefault(item.key, item) is item

    async def renew(self, key: str, ttl_s: int) -> bool:
        return key in self.values

    async def close(self) -> None: ...

    def state(self, id: str) -> str:
        item = self.values.get(KEY_PREFIX + id)
        return json.loads(item.value)["state"] if item else ""


@asynccontextmanager
async def running(store: Store | None) -> AsyncIterator[tuple[Records, GatewayMetrics]]:
    metrics = GatewayMetrics(CollectorRegistry())
    records = Records(store, metrics=metrics, ttl_s=600)
    task = asyncio.create_task(records.run())
    yield records, metrics
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def record(number: int, **fields: object) -> Record:
    values: dict[str, object] = {"state": "accepted", "model": "tiny", "endpoint": "chat"}
    return Record(id=f"{number:032x}", accepted_at=1.5, **(values | fields))  # type: ignore[arg-type]


def dropped(metrics: GatewayMetrics) -> float:
    return metrics.registry.get_sample_value("octavo_gateway_records_dropped_total") or 0.0


def test_changes_gather_into_one_write_of_the_latest_state() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with running(store) as (records, _):
            many = [record(i) for i in range(50)]
            for one in many:
                records.write(one)
                one.state = "routed"
                records.write(one)
            await until(lambda: records.num_waiting == 0 and len(store.values) == 50)
            assert store.batches == [50]
            assert store.state(many[0].id) == "routed"

    asyncio.run(scenario())


def test_an_unfinished_record_lives_shortly_and_a_final_one_long() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with running(store) as (records, _):
            one = record(1)
            records.write(one)
            await until(lambda: store.state(one.id) == "accepted")
            assert store.values[KEY_PREFIX + one.id].ttl_s == OPEN_TTL_S
            one.state = "finished"
            records.write(one)
            await until(lambda: store.state(one.id) == "finished")
            assert store.values[KEY_PREFIX + one.id].ttl_s == 600

    asyncio.run(scenario())


def test_open_records_are_renewed_and_final_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.1)

    async def scenario() -> None:
        store = MemoryStore()
        async with running(store) as (records, _):
            records.write(record(1))
            records.write(record(2, state="failed"))
            await until(lambda: len(store.values) == 2)
            store.values.clear()
            await until(lambda: store.state(record(1).id) == "accepted")
            assert store.state(record(2).id) == ""

    asyncio.run(scenario())


def test_steady_traffic_does_not_keep_open_records_from_their_renewal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RENEW_S", 0.15)

    async def scenario() -> None:
        store = MemoryStore()
        async with running(store) as (records, _):
            records.write(record(1))
            await until(lambda: store.state(record(1).id) == "accepted")
            store.values.clear()
            async with asyncio.timeout(EVENTUALLY_S):
                number = 2
                while not store.state(record(1).id):
                    records.write(record(number, state="finished"))
                    number += 1
                    await asyncio.sleep(0.005)

    asyncio.run(scenario())


def test_a_backlog_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BATCH", 2)
    monkeypatch.setattr(module, "FLUSH_S", 0.2)

    async def scenario() -> None:
        store = MemoryStore()
        async with running(store) as (records, _):
            for i in range(50):
                records.write(record(i, state="finished"))
            await until(lambda: len(store.values) == 50, timeout_s=1.0)
            assert max(store.batches) == 2

    asyncio.run(scenario())


def test_an_outage_within_the_bound_loses_nothing() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        store.away = True
        async with running(store) as (records, metrics):
            for i in range(250):
                records.write(record(i, state="finished"))
            await asyncio.sleep(0.2)
            assert records.num_waiting == 250
            store.away = False
            await until(lambda: records.num_waiting == 0 and len(store.values) == 250)
            assert dropped(metrics) == 0

    asyncio.run(scenario())


def test_beyond_the_bound_the_oldest_are_lost_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)

    async def scenario() -> None:
        store = MemoryStore()
        store.away = True
        async with running(store) as (records, metrics):
            for i in range(25):
                records.write(record(i, state="finished"))
            assert records.num_waiting == 10
            assert dropped(metrics) == 15
            store.away = False
            await until(lambda: len(store.values) == 10)
            assert store.state(record(24).id) == "finished"

    asyncio.run(scenario())


def test_flush_at_the_end_writes_what_waits() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        records = Records(store, metrics=GatewayMetrics(CollectorRegistry()), ttl_s=600)
        for i in range(250):
            records.write(record(i, state="finished"))
        await records.flush(1.0)
        assert len(store.values) == 250

    asyncio.run(scenario())


def test_flush_gives_up_and_counts() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        store.away = True
        metrics = GatewayMetrics(CollectorRegistry())
        records = Records(store, metrics=metrics, ttl_s=600)
        records.write(record(1, state="finished"))
        await records.flush(0.2)
        assert dropped(metrics) == 1

    asyncio.run(scenario())


def test_without_a_store_the_latest_records_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECENT", 3)

    async def scenario() -> None:
        async with running(None) as (records, _):
            records.write(record(99))
            for i in range(5):
                records.write(record(i, state="finished"))
            assert records.num_waiting == 0
            assert await records.get(record(1).id) is None
            assert (await records.get(record(4).id) or {})["state"] == "finished"
            assert (await records.get(record(99).id) or {})["state"] == "accepted"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "value",
    [b"\xff\x00", b"[]", b'{"version": 1}', b'{"version":2,"id":"%s"}' % (b"0" * 31 + b"1")],
    ids=["no JSON", "no object", "incomplete", "another version"],
)
def test_a_foreign_value_counts_as_missing(value: bytes) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        key = KEY_PREFIX + record(1).id
        store.values[key] = Item(key, value, 9)
        async with running(store) as (records, metrics):
            assert await records.get(record(1).id) is None
            name = "octavo_gateway_records_unreadable_total"
            assert metrics.registry.get_sample_value(name) == 1

    asyncio.run(scenario())


def test_the_record_of_another_request_is_never_shown() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        async with running(store) as (records, _):
            records.write(record(1, state="finished"))
            await until(lambda: len(store.values) == 1)
        async with running(store) as (records, _):
            mixed_up = store.values[KEY_PREFIX + record(1).id]
            store.values[KEY_PREFIX + record(2).id] = mixed_up
            assert await records.get(record(2).id) is None
            assert (await records.get(record(1).id) or {})["id"] == record(1).id

    asyncio.run(scenario())


def test_no_other_key_can_be_read_through_an_id() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        store.away = True
        async with running(store) as (records, _):
            assert await records.get("../../limits") is None
            with pytest.raises(OctavoError) as caught:
                await records.get("0" * 32)
            assert caught.value.kind is RECORD_UNAVAILABLE
            assert caught.value.retry_after_ms

    asyncio.run(scenario())


def test_records_of_a_gateway_outlive_an_outage_of_valkey(tmp_path: Path) -> None:
    server = Valkey(tmp_path)

    async def scenario() -> None:
        store = RedisStore(server.url)
        async with gateway(FakeEngine(), store=store) as gw:
            server.stop()
            generation = await gw.open(prompt("while it is away"))
            assert [d async for d in generation]
            await until(lambda: store.breaker.is_open)
            server.start()
            raw = None
            async with asyncio.timeout(EVENTUALLY_S):
                while raw is None:
                    await asyncio.sleep(0.05)
                    with contextlib.suppress(StoreUnavailableError):
                        raw = await store.get(KEY_PREFIX + generation.id)
            assert json.loads(raw)["state"] == "finished"
            assert b"while it is away" not in raw
        await store.close()

    try:
        asyncio.run(scenario())
    finally:
        server.stop()
