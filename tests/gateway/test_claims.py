"""Claims of two gateways over one real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.bounds import EVENTUALLY_S
from tests.gateway.test_redis_store import command
from tests.gateway.valkey import Valkey

from octavo.gateway.claims import Claim, Claims
from octavo.gateway.idempotency import Entry, Identity, encode, fingerprint_of, key_digest
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.redis_store import FIRST_REST_S, WRITE_DEADLINE_S, RedisStore
from octavo.gateway.store import Item
from octavo.v1.errors import ANSWER_NOT_KEPT, IDEMPOTENCY_KEY_REUSED, OctavoError

PRINT = fingerprint_of("chat", {"a": 1}, num_prompts=1)
DELTAS = ((b"one", b"two"),)


pytestmark = pytest.mark.usefixtures("quick_claims")


class Gateway:
    """One gateway's claims, and what its waiting request was told."""

    def __init__(self, valkey: Valkey, name: str) -> None:
        self.name = name
        # As long as a write: on a busy machine it would be missed now and then.
        self.store = RedisStore(valkey.url, deadline_s=WRITE_DEADLINE_S)
        self.metrics = GatewayMetrics(CollectorRegistry())
        self.claims = Claims(self.store, metrics=self.metrics, owner=name, ttl_s=50)
        self.waited: list[Entry] = []

    def wanted(self, key: str, *, fingerprint: str = PRINT) -> Entry:
        identity = Identity(id=self.name * 32, created=1, seeds=(ord(self.name),))
        return Entry(key=key_digest("", key), fingerprint=fingerprint, identity=identity)

    async def acquire(self, key: str, *, fingerprint: str = PRINT) -> Claim:
        wanted = self.wanted(key, fingerprint=fingerprint)
        async with asyncio.timeout(EVENTUALLY_S):
            return await self.claims.acquire(wanted, on_wait=self.waited.append)

    def outcome(self, name: str) -> float:
        sample = "octavo_gateway_idempotent_requests_total"
        return self.metrics.registry.get_sample_value(sample, {"outcome": name}) or 0.0


@asynccontextmanager
async def two(valkey: Valkey) -> AsyncIterator[tuple[Gateway, Gateway]]:
    a, b = Gateway(valkey, "a"), Gateway(valkey, "b")
    try:
        yield a, b
    finally:
        await a.store.close()
        await b.store.close()


@asynccontextmanager
async def kept(gateway: Gateway, claim: Claim) -> AsyncIterator[asyncio.Task[None]]:
    keeper = asyncio.create_task(gateway.claims.keep(claim))
    try:
        yield keeper
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper


def test_one_of_many_gets_the_key_and_the_others_its_answer(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b):
            tasks = [asyncio.create_task(g.acquire("many")) for g in (a, b, a, b)]
            done, waiting = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
            (first,) = [t.result() for t in done]
            assert first.held
            assert first.entry.tries == 1
            winner = a if first.entry.identity.id.startswith("a") else b
            async with kept(winner, first):
                await asyncio.sleep(1.5)  # longer than a lease
                assert len(waiting) == 3
                assert not any(t.done() for t in waiting)
            await winner.claims.settle(first, "finished", DELTAS)
            for task in waiting:
                answer = await task
                assert answer.entry.identity == first.entry.identity
                assert answer.entry.deltas == DELTAS
            assert {e.identity for e in a.waited + b.waited} == {first.entry.identity}

    asyncio.run(scenario())


def test_a_dead_owner_is_replaced_under_its_identity_when_its_lease_is_over(
    valkey: Valkey,
) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b):
            loop = asyncio.get_running_loop()
            dead = await a.acquire("dead")
            start = loop.time()
            taken = await b.acquire("dead")
            assert 0.5 < loop.time() - start < 10
            assert taken.held
            assert taken.entry.identity == dead.entry.identity
            assert taken.entry.tries == 2
            assert b.waited

    asyncio.run(scenario())


def test_an_owner_that_was_replaced_neither_renews_nor_settles(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b):
            slow = await a.acquire("slow")
            taken = await b.acquire("slow")
            async with kept(a, slow) as keeper:
                await asyncio.wait_for(keeper, 5)
            assert not slow.held
            await a.claims.settle(slow, "finished", ((b"stale",),))
            await b.claims.settle(taken, "finished", DELTAS)
            assert (await a.acquire("slow")).entry.deltas == DELTAS

    asyncio.run(scenario())


def test_a_failed_key_is_free_at_once_and_keeps_its_identity(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b):
            failed = await a.acquire("failed")
            await a.claims.settle(failed, "free")
            again = await b.acquire("failed")
            assert again.held
            assert (again.entry.identity, again.entry.tries) == (failed.entry.identity, 2)
            assert b.waited == []
            await b.claims.settle(again, "free")
            other = await b.acquire("failed", fingerprint="0" * 32)
            assert (other.entry.identity.id, other.entry.tries) == ("b" * 32, 3)

    asyncio.run(scenario())


def test_another_body_and_an_answer_not_kept_are_refused(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b):
            claim = await a.acquire("taken")
            for state in ("running", "finished"):
                with pytest.raises(OctavoError) as caught:
                    await b.acquire("taken", fingerprint="0" * 32)
                assert caught.value.kind is IDEMPOTENCY_KEY_REUSED
                if state == "running":
                    await a.claims.settle(claim, "finished", DELTAS)
            await a.claims.settle(claim, "too_large")
            with pytest.raises(OctavoError) as caught:
                await b.acquire("taken")
            assert caught.value.kind is ANSWER_NOT_KEPT

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "value",
    [b"garbage", encode(Entry(key="f" * 32, fingerprint=PRINT, identity=Identity(
        id="f" * 32, created=1, seeds=(1,)), state="finished", deltas=((b"neighbour's",),)))],
    ids=["foreign", "of another key"],
)  # fmt: skip
def test_a_value_that_cannot_be_trusted_counts_as_none(valkey: Valkey, value: bytes) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b):
            key = f"odd-{value[:1].hex()}"
            await a.store.put_many([Item(a.wanted(key).name, value, 50)])
            claim = await a.acquire(key)
            assert claim.held
            assert claim.entry == a.wanted(key)
            assert a.outcome("unreadable") >= 1
            await a.claims.settle(claim, "finished", DELTAS)
            assert (await b.acquire(key)).entry.deltas == DELTAS

    asyncio.run(scenario())


def test_a_claim_that_the_store_has_lost_is_put_back(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b):
            claim = await a.acquire("flushed")
            async with kept(a, claim):
                valkey.stop()
                valkey.start()
                async with asyncio.timeout(EVENTUALLY_S):
                    while True:
                        with suppress(Exception):
                            if await a.store.get(claim.entry.name):
                                break
                        await asyncio.sleep(0.05)
                assert claim.held
                waiting = asyncio.create_task(b.acquire("flushed"))
                await asyncio.sleep(0.3)
                assert not waiting.done()
                await a.claims.settle(claim, "finished", DELTAS)
                assert (await waiting).entry.deltas == DELTAS

    asyncio.run(scenario())


def test_without_the_store_a_new_request_does_not_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Valkey(tmp_path)
        async with two(server) as (a, _):
            server.stop()
            loop = asyncio.get_running_loop()
            start = loop.time()
            claim = await a.acquire("away")
            assert loop.time() - start < 2.0
            assert not claim.held
            assert claim.entry == a.wanted("away")
            assert a.outcome("unclaimed") == 1
            await a.claims.settle(claim, "finished", DELTAS)  # nothing to write: not ours

    asyncio.run(scenario())


def test_a_short_outage_does_not_make_a_waiting_gateway_generate(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Valkey(tmp_path)
        async with two(server) as (a, b):
            claim = await a.acquire("blip")
            async with kept(a, claim):
                waiting = asyncio.create_task(b.acquire("blip"))
                while not b.waited:
                    await asyncio.sleep(0.01)
                server.freeze()
                await asyncio.sleep(0.3)
                server.thaw()
                await a.claims.settle(claim, "finished", DELTAS)
                assert (await waiting).entry.deltas == DELTAS
        server.stop()

    asyncio.run(scenario())


def test_a_long_outage_ends_the_waiting_with_the_identity_that_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Valkey(tmp_path)
        async with two(server) as (a, b):
            claim = await a.acquire("outage")
            waiting = asyncio.create_task(b.acquire("outage"))
            while not b.waited:
                await asyncio.sleep(0.01)
            server.stop()
            taken = await waiting
            assert not taken.held
            assert taken.entry.identity == claim.entry.identity

    asyncio.run(scenario())


def test_a_lease_that_is_in_the_way_for_ever_does_not_hold_a_request(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, _):
            await a.store.put_many([Item(a.wanted("blocked").lease, b"foreign", 50)])
            claim = await a.acquire("blocked")
            assert not claim.held
            assert claim.entry == a.wanted("blocked")

    asyncio.run(scenario())


def test_an_answer_is_written_again_when_the_store_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Valkey(tmp_path)
        async with two(server) as (a, b):
            claim = await a.acquire("back")
            server.freeze()
            asyncio.get_running_loop().call_later(0.4, server.thaw)
            await a.claims.settle(claim, "finished", DELTAS)
            await asyncio.sleep(FIRST_REST_S)
            assert (await b.acquire("back")).entry.deltas == DELTAS
        server.stop()

    asyncio.run(scenario())


def test_nothing_is_kept_without_an_end(valkey: Valkey) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, _):
            claim = await a.acquire("lives")
            assert await command(valkey, "TTL", claim.entry.name) in (":49", ":50")
            assert await command(valkey, "TTL", claim.entry.lease) in (":0", ":1")
            await a.claims.settle(claim, "finished", DELTAS)
            assert await command(valkey, "TTL", claim.entry.name) in (":49", ":50")

    asyncio.run(scenario())


def test_whoever_waited_keeps_the_identity_that_its_client_has_when_the_store_forgets(
    valkey: Valkey,
) -> None:
    async def scenario() -> None:
        async with two(valkey) as (a, b):
            claim = await a.acquire("forgotten")  # and dies: nobody keeps it
            waiting = asyncio.create_task(b.acquire("forgotten"))
            while not b.waited:
                await asyncio.sleep(0.01)
            await command(valkey, "FLUSHALL")
            taken = await waiting
            assert taken.entry.identity == claim.entry.identity
            assert taken.entry.tries == claim.entry.tries + 1

    asyncio.run(scenario())
