"""kopf's watches against an API server that does what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.operator.api_stand_in import ApiStandIn

from octavo.operator.cluster import Connection
from octavo.operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, POD, Kind, Manifest
from octavo.operator.watches import settings, watch

KINDS = (INFERENCE_SERVICE, POD, DEPLOYMENT)
Seen = tuple[Kind, str, str]


def thing(name: str, version: int, **more: object) -> Manifest:
    metadata = {"name": name, "namespace": "shop", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, **more}


class World:
    """An API server, the watches of it, and what they have told."""

    def __init__(self, api: ApiStandIn) -> None:
        self.api = api
        self.token = "first"
        self.num_logins = 0
        self.stop = asyncio.Event()
        self.seen: asyncio.Queue[Seen] = asyncio.Queue()
        self.manifests: dict[str, Manifest] = {}

    def connection(self) -> Connection:
        self.num_logins += 1
        return Connection(
            server=self.api.url,
            ca_path=None,
            ca_data=None,
            insecure=False,
            token=self.token,
            certificate_path=None,
            certificate_data=None,
            key_path=None,
            key_data=None,
        )

    def notice(self, kind: Kind, event: str, manifest: Manifest) -> None:
        self.manifests[manifest["metadata"]["name"]] = manifest
        self.seen.put_nowait((kind, event, manifest["metadata"]["name"]))

    @asynccontextmanager
    async def watching(self, *namespaces: str) -> AsyncIterator[asyncio.Task[None]]:
        started = asyncio.Event()
        task = asyncio.create_task(
            watch(
                KINDS,
                namespaces,
                notice=self.notice,
                connection=self.connection,
                request_timeout_s=5,
                started=started.set,
                stop=self.stop,
            )
        )
        await started.wait()
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])

    @property
    def lists(self) -> list[str]:
        plurals = tuple(kind.plural for kind in KINDS)
        asked = self.api.asked
        return [p for _, p, q in asked if p.endswith(plurals) and "watch" not in q]


def run(case: Callable[[World], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        async with ApiStandIn(*KINDS).running() as api, asyncio.timeout(30):
            await case(World(api))

    asyncio.run(wrapped())


def test_what_exists_and_what_changes_is_told_and_nothing_is_written() -> None:
    async def case(world: World) -> None:
        world.api.items[INFERENCE_SERVICE] = [thing("chat", 5, spec={"new": [1]})]
        async with world.watching():
            assert await world.seen.get() == (INFERENCE_SERVICE, "LISTED", "chat")
            assert world.manifests["chat"]["spec"] == {"new": [1]}
            assert world.manifests["chat"]["kind"] == "InferenceService"
            await world.api.watched(*KINDS)
            world.api.tell(POD, "ADDED", thing("p", 101))
            assert await world.seen.get() == (POD, "ADDED", "p")
            world.api.tell(POD, "MODIFIED", thing("p", 102))
            assert await world.seen.get() == (POD, "MODIFIED", "p")
            world.api.tell(POD, "DELETED", thing("p", 103))
            assert await world.seen.get() == (POD, "DELETED", "p")
        assert {method for method, _, _ in world.api.asked} == {"GET"}

    run(case)


def test_all_but_the_services_are_watched_by_label_and_within_the_namespaces() -> None:
    async def case(world: World) -> None:
        async with world.watching("shop"):
            await world.api.watched(*KINDS)
        queries = {path: q for _, path, q in world.api.asked if q.get("watch")}
        label = "serving.octavo.dev/service"
        assert {path: q.get("labelSelector") for path, q in queries.items()} == {
            "/apis/serving.octavo.dev/v1alpha1/namespaces/shop/inferenceservices": None,
            "/api/v1/namespaces/shop/pods": label,
            "/apis/apps/v1/namespaces/shop/deployments": label,
        }

    run(case)


def test_a_stream_that_ends_goes_on_where_it_was() -> None:
    async def case(world: World) -> None:
        async with world.watching():
            await world.api.watched(*KINDS)
            world.api.tell(POD, "ADDED", thing("p", 107))
            await world.seen.get()
            world.api.drop()
            await world.api.unwatched()
            await world.api.watched(POD)
            since = [q for _, p, q in world.api.asked if p.endswith("pods") and "watch" in q]
            assert [q["resourceVersion"] for q in since] == ["100", "107"]
            world.api.tell(POD, "MODIFIED", thing("p", 108))
            assert await world.seen.get() == (POD, "MODIFIED", "p")

    run(case)


def test_what_has_expired_is_listed_again() -> None:
    async def case(world: World) -> None:
        async with world.watching():
            await world.api.watched(*KINDS)
            world.api.items[POD] = [thing("missed", 150)]
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "metadata": {}}
            world.api.tell(POD, "ERROR", gone)
            assert await world.seen.get() == (POD, "LISTED", "missed")

    run(case)


def test_an_error_within_a_stream_is_raised() -> None:
    async def case(world: World) -> None:
        async with world.watching() as task:
            await world.api.watched(*KINDS)
            world.api.tell(POD, "ERROR", {"kind": "Status", "code": 500, "metadata": {}})
            await asyncio.wait([task])
            with pytest.raises(Exception, match="Error in the watch-stream"):
                task.result()

    run(case)


def test_a_rotated_token_is_read_anew() -> None:
    async def case(world: World) -> None:
        async with world.watching():
            await world.api.watched(*KINDS)
            world.api.token = world.token = "second"
            world.api.drop()
            await world.api.unwatched()
            await world.api.watched(*KINDS)
            assert world.num_logins == 2

    run(case)


def test_the_watching_ends_soon_when_it_is_told_to() -> None:
    async def case(world: World) -> None:
        async with world.watching() as task:
            await world.api.watched(*KINDS)
            task.cancel()
            async with asyncio.timeout(2):
                await asyncio.wait([task])

    run(case)


def test_it_ends_when_it_is_stopped_and_takes_no_task_of_others_along() -> None:
    async def case(world: World) -> None:
        async with world.watching() as task:
            await world.api.watched(*KINDS)
            other = asyncio.create_task(asyncio.sleep(1))
            world.stop.set()
            await task
            await other

    run(case)


def test_a_failure_of_kopf_does_not_end_the_process_later() -> None:
    assert settings(KINDS, request_timeout_s=5).process.ultimate_exiting_timeout is None
