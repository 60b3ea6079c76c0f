"""Bugs in records, keys and what is kept in Redis."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.sim.mutants.mutant import Mutant, mutant

from octavo.gateway import records
from octavo.gateway.claims import Claim, Claims
from octavo.gateway.records import KEY_PREFIX, Record, Records
from octavo.gateway.redis_store import RedisStore

MUTANTS: list[Mutant] = []


@mutant(MUTANTS, RedisStore, "put_many", "R2")
def values_live_for_ever(original: Any) -> Any:
    async def put_many(self: RedisStore, items: Any) -> None:
        async with self._client.pipeline(transaction=False) as pipe:
            for item in items:
                pipe.set(item.key, item.value)
            await pipe.execute()

    return put_many


@mutant(MUTANTS, Records, "_read", "R3")
def record_of_another_is_shown(original: Any) -> Any:
    async def read(self: Records, store: Any, id: str) -> Record | None:
        raw = await store.get(KEY_PREFIX + id)
        return None if raw is None else msgspec.json.decode(raw, type=Record)

    return read


@mutant(MUTANTS, records, "OPEN_TTL_S", "R3")
def dead_gateway_runs_on(original: Any) -> Any:
    return 600


@mutant(MUTANTS, Records, "_enqueue", "G4")
def records_have_no_bound(original: Any) -> Any:
    def enqueue(self: Records, record: Record) -> None:
        self._waiting[record.id] = record
        self._changed.set()

    return enqueue


@mutant(MUTANTS, Claims, "acquire", "C5")
def keys_are_not_claimed(original: Any) -> Any:
    async def acquire(self: Claims, wanted: Any, *, on_wait: Any) -> Claim:
        return Claim(entry=wanted, held=False)

    return acquire
