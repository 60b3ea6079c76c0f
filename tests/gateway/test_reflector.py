"""A reflector in front of an API server that does everything wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs
from tests.gateway.fake_api_server import GONE, ApiServer, api_server
from tests.gateway.harness import until

from octavo.gateway import reflector as module
from octavo.gateway.kubernetes_objects import InferenceService
from octavo.gateway.reflector import Reflector

PATH = "apis/x/things"


def thing(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "a"}, "spec": spec}


class Reflection:
    """A reflector and what it says."""

    def __init__(self, server: ApiServer, *, token: str) -> None:
        self.num_changes = 0
        headers = {"Authorization": f"Bearer {token}"}
        self.reflector = Reflector(
            PATH,
            InferenceService,
            selector="",
            connect=lambda: httpx2.AsyncClient(base_url=server.url, headers=headers),
            uniform=min,
            on_change=self._count,
        )

    def _count(self) -> None:
        self.num_changes += 1

    @property
    def names(self) -> list[str]:
        return sorted(one.metadata.name for one in self.reflector.objects)


def run(
    scenario: Callable[[ApiServer, Reflection], Coroutine[Any, Any, None]], *, token: str = "t"
) -> None:
    async def within() -> None:
        async with api_server() as server:
            server.lists[PATH] = [thing("one")]
            made = Reflection(server, token=token)
            task = asyncio.create_task(made.reflector.run())
            try:
                await scenario(server, made)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(within())


async def watched(server: ApiServer, times: int = 1) -> None:
    await until(lambda: server.count(PATH, watch=True) >= times and PATH in server.watches)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(module, "LAST_RETRY_S", 0.1)


def test_what_is_listed_is_known_and_changes_are_followed() -> None:
    async def scenario(server: ApiServer, made: Reflection) -> None:
        await watched(server)
        assert made.reflector.synced
        assert made.names == ["one"]
        assert server.asked[-1][1]["resourceVersion"] == "1"
        await server.say(PATH, "ADDED", thing("two"))
        await until(lambda: made.names == ["one", "two"])
        await server.say(PATH, "MODIFIED", thing("two", replicas=0))
        await until(lambda: [o.spec.replicas for o in made.reflector.objects] == [None, 0])
        await server.say(PATH, "DELETED", thing("one"))
        await until(lambda: made.names == ["two"])
        changes = made.num_changes
        await server.say(PATH, "BOOKMARK", {"metadata": {"resourceVersion": "9"}})
        await server.say(PATH, "ADDED", thing("three"))
        await until(lambda: made.num_changes > changes)
        assert made.num_changes == changes + 1
        assert server.count(PATH, watch=False) == 1

    run(scenario)


def test_an_object_that_cannot_be_read_harms_no_other() -> None:
    async def scenario(server: ApiServer, made: Reflection) -> None:
        server.lists[PATH] = [thing("bad", replicas="many"), thing("good"), {"metadata": 5}]
        await watched(server)
        assert made.names == ["good"]
        await server.say(PATH, "ADDED", thing("worse", model=[]))
        await server.say(PATH, "ADDED", thing("better"))
        await until(lambda: made.names == ["better", "good"])

    run(scenario)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("at_once", [False, True], ids=["event", "status"])
def test_a_history_that_is_gone_costs_a_list(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE_S", 0.0)

    async def scenario(server: ApiServer, made: Reflection) -> None:
        await watched(server)
        server.lists[PATH] = [thing("two")]
        server.version = 2
        if at_once:
            server.watch_status = 410
            await server.stop()
            await server.start()
            await until(lambda: made.names == ["two"])
            server.watch_status = 200
        await server.say(PATH, "ERROR", GONE)
        await until(lambda: made.names == ["two"])
        await watched(server, 2)
        assert server.asked[-1][1]["resourceVersion"] == "2"

    run(scenario)


@pytest.mark.usefixtures("quick")
def test_while_the_server_is_away_what_was_known_stays() -> None:
    async def scenario(server: ApiServer, made: Reflection) -> None:
        await watched(server)
        with capture_logs() as logs:
            await server.stop()
            await until(lambda: made.reflector.is_away)
            await asyncio.sleep(0.5)
            assert made.names == ["one"]
            assert made.reflector.synced
            server.lists[PATH] = [thing("two")]
            await server.start()
            await until(lambda: made.names == ["two"])
        assert not made.reflector.is_away
        told = [e["event"] for e in logs if e["log_level"] != "debug"]
        assert told == ["api_server_fails", "api_server_is_back"], "an outage is one line"

    run(scenario)


@pytest.mark.usefixtures("quick")
def test_a_token_that_cannot_be_sent_is_not_logged() -> None:
    async def scenario(_server: ApiServer, made: Reflection) -> None:
        with capture_logs() as logs:
            await until(lambda: made.reflector.is_away)
        assert "a header of the request" in str(logs)
        assert "geheim" not in str(logs)

    run(scenario, token="geheim\n")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_refusals_are_tried_again(status: int) -> None:
    async def scenario(server: ApiServer, made: Reflection) -> None:
        server.status = status
        await until(lambda: server.count(PATH, watch=False) >= 3)
        assert not made.reflector.synced
        server.status = 200
        await watched(server)
        assert made.names == ["one"]

    run(scenario)


@pytest.mark.usefixtures("quick")
def test_that_we_may_not_ask_is_news_also_while_the_server_is_away() -> None:
    async def scenario(server: ApiServer, made: Reflection) -> None:
        with capture_logs() as logs:
            server.status = 503
            await until(lambda: made.reflector.is_away)
            changes = made.num_changes
            server.status = 403
            await until(lambda: made.reflector.is_refused)
            assert made.num_changes == changes + 1
            server.status = 503
            await until(lambda: not made.reflector.is_refused)
            assert made.reflector.is_away
        told = [entry["reason"] for entry in logs if entry["log_level"] == "warning"]
        assert [("503" in reason, "403" in reason) for reason in told] == [
            (True, False),
            (False, True),
        ]

    run(scenario)


@pytest.mark.usefixtures("quick")
def test_a_watch_that_says_nothing_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_S", 0)
    monkeypatch.setattr(module, "SILENCE_S", 0.3)

    async def scenario(server: ApiServer, made: Reflection) -> None:
        await watched(server)
        server.lists[PATH] = [thing("two")]  # and no watch says so
        await until(lambda: made.names == ["two"])

    run(scenario)


@pytest.mark.usefixtures("quick")
def test_watches_that_end_at_once_do_not_make_it_spin() -> None:
    async def scenario(server: ApiServer, made: Reflection) -> None:
        server.ends_watches = True
        await until(lambda: server.count(PATH, watch=True) >= 2)
        before = server.count(PATH, watch=True)
        await asyncio.sleep(1.0)
        assert server.count(PATH, watch=True) - before < 30
        assert made.names == ["one"]

    run(scenario)


@pytest.mark.usefixtures("quick")
def test_another_error_of_a_watch_ends_it() -> None:
    async def scenario(server: ApiServer, made: Reflection) -> None:
        await watched(server)
        server.lists[PATH] = [thing("two")]
        await server.say(PATH, "ERROR", {"code": 500, "message": "etcd is sad"})
        await until(lambda: made.names == ["two"])

    run(scenario)


@pytest.mark.usefixtures("quick")
def test_what_is_no_event_ends_a_watch() -> None:
    async def scenario(server: ApiServer, made: Reflection) -> None:
        await watched(server)
        server.lists[PATH] = [thing("two")]
        for writer in server.watches[PATH]:
            writer.write(b'5\r\n{"a"\n\r\n')
        await until(lambda: made.names == ["two"])

    run(scenario)
