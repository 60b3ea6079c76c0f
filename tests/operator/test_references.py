from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.certificates import Authority
from tests.operator.fake_cluster import FakeCluster

from octavo.operator.cluster import RefusedError, UnavailableError
from octavo.operator.kinds import CONFIG_MAP, SECRET, Manifest
from octavo.operator.observed import Reference, digest
from octavo.operator.references import KEPT_S, References
from octavo.runtime.certificates import valid_until

FRESH_S = 15.0
TOKEN = Reference(kind="Secret", name="hub", key="token")
ALL = Reference(kind="Secret", name="hub")
MAP = Reference(kind="ConfigMap", name="hub")


def secret(**data: str) -> Manifest:
    return {"metadata": {"name": "hub", "namespace": "shop"}, "data": data}


class World:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.time = 0.0
        self.references = References(self.cluster, fresh_s=FRESH_S, now=lambda: self.time)

    async def read(self, *wanted: Reference) -> dict[Reference, str | None]:
        return (await self.references.read("shop", wanted)).digests

    @property
    def num_reads(self) -> int:
        return len(self.cluster.calls)


def run(case: Callable[[World], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        await case(World())

    asyncio.run(wrapped())


def test_an_object_is_read_once_for_all_that_is_taken_from_it() -> None:
    async def case(world: World) -> None:
        stored = world.cluster.put(SECRET, secret(token="a", other="b"))
        assert await world.read(TOKEN, ALL, MAP) == {
            TOKEN: digest(TOKEN, stored),
            ALL: digest(ALL, stored),
            MAP: None,
        }
        assert [(call.kind, call.name) for call in world.cluster.calls] == [
            (SECRET, "hub"),
            (CONFIG_MAP, "hub"),
        ]

    run(case)


def test_a_reading_counts_for_a_while_and_a_rotation_is_seen_then() -> None:
    async def case(world: World) -> None:
        world.cluster.put(SECRET, secret(token="old"))
        before = await world.read(TOKEN)
        world.cluster.put(SECRET, secret(token="new"))
        assert await world.read(TOKEN) == before
        assert world.num_reads == 1
        world.time += FRESH_S
        assert await world.read(TOKEN) != before
        assert world.num_reads == 2

    run(case)


def test_what_cannot_be_read_is_as_it_was() -> None:
    async def case(world: World) -> None:
        world.cluster.put(SECRET, secret(token="a"))
        before = await world.read(TOKEN)
        for error in (UnavailableError("away"), RefusedError("not yours")):
            world.cluster.fail(error)
            world.time += FRESH_S
            assert await world.read(TOKEN, MAP) == before, "the map was never read: no statement"
            known = await world.references.read("shop", [TOKEN, MAP])
            assert known.unread == {MAP: error.message}

    run(case)


def test_of_a_certificate_its_end_is_kept(tmp_path: Path) -> None:
    async def case(world: World) -> None:
        pem = Authority(tmp_path, "one").pem
        encoded = base64.b64encode(pem).decode()
        world.cluster.put(SECRET, secret(token="YQ==", crt=encoded))
        certificate = Reference(kind="Secret", name="hub", key="crt")
        known = await world.references.read("shop", [TOKEN, certificate])
        assert known.ends == {certificate: valid_until(pem)}

    run(case)


def test_namespaces_have_secrets_of_their_own() -> None:
    async def case(world: World) -> None:
        world.cluster.put(SECRET, secret(token="a"))
        assert (await world.read(TOKEN))[TOKEN] is not None
        assert (await world.references.read("other", [TOKEN])).digests == {TOKEN: None}

    run(case)


def test_what_nobody_asks_for_is_forgotten() -> None:
    async def case(world: World) -> None:
        world.cluster.put(SECRET, secret(token="a"))
        await world.read(TOKEN)
        world.time += KEPT_S
        world.references.prune()
        world.cluster.fail(UnavailableError("away"))
        assert await world.read(TOKEN) == {}

    run(case)
