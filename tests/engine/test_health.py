from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from octavo.engine import health as module
from octavo.engine.health import Health, StatusServer, stale_after_s, watch
from octavo.v1.errors import BAD_SETTING, PORT_IN_USE, OctavoError


def made(stage: str = "ready", age_s: float = 0.0, stale_s: float = 1.0) -> Health:
    return Health(stage=stage, step=7, step_age_s=age_s, stale_s=stale_s)


@pytest.mark.parametrize(
    ("stage", "age_s", "alive", "ready"),
    [
        ("loading", 0.0, True, False),
        ("warming", 0.0, True, False),
        ("ready", 0.0, True, True),
        ("ready", 0.99, True, True),
        ("ready", 1.0, False, False),
        ("draining", 0.5, True, False),
        ("draining", 1.0, False, False),
        ("failed", 0.0, False, False),
    ],
)
def test_progress_is_what_makes_it_well(stage: str, age_s: float, alive: bool, ready: bool) -> None:
    health = made(stage, age_s)
    assert (health.alive, health.ready) == (alive, ready)


@pytest.mark.parametrize(("watchdog_s", "stale_s"), [(60.0, 30.0), (4.0, 2.0), (0.0, 30.0)])
def test_probes_see_a_stuck_turn_before_the_watchdog_acts(
    watchdog_s: float, stale_s: float
) -> None:
    assert stale_after_s(watchdog_s) == stale_s


def test_the_watch_tells_each_change_once_and_ends_with_a_turn_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = [made("loading"), made(), made(), made(age_s=1.5), made(age_s=1.9), made(), made()]
    states += [made(age_s=1.5), made(age_s=2.1), made()]
    told: list[bool] = []

    async def tell(serving: bool) -> None:
        told.append(serving)

    monkeypatch.setattr(module, "TICK_S", 0.0)
    asyncio.run(watch(lambda: states.pop(0), limit_s=2.0, tell=tell))
    assert told == [True, False, True, False]
    assert len(states) == 1


def test_without_a_watchdog_nothing_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(serving: bool) -> None:
        raise AssertionError

    async def check() -> None:
        running = asyncio.create_task(watch(lambda: made(age_s=9.0), limit_s=0.0, tell=tell))
        await asyncio.sleep(0.05)
        assert not running.done()
        running.cancel()

    monkeypatch.setattr(module, "TICK_S", 0.0)
    asyncio.run(check())


class Probe:
    """A status server, and a client on a raw socket."""

    def __init__(self) -> None:
        self.health = made()
        self.registry = CollectorRegistry()
        Counter("things", "Things.", registry=self.registry).inc(3)
        self.server = StatusServer(self.registry, lambda: self.health)
        self.port = 0

    async def ask(self, target: str, method: str = "GET") -> tuple[int, bytes, bytes]:
        answer = await self.raw(f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), head, body

    async def raw(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        try:
            return await reader.read()
        finally:
            writer.close()


def run(check: Callable[[Probe], Awaitable[None]]) -> None:
    async def scenario() -> None:
        probe = Probe()
        probe.port = await probe.server.start("127.0.0.1:0")
        try:
            async with asyncio.timeout(20):
                await check(probe)
        finally:
            probe.server.stop()

    asyncio.run(scenario())


def test_probes_get_the_stage_the_step_and_its_age() -> None:
    async def check(probe: Probe) -> None:
        for health, alive, ready in (
            (made(), 200, 200),
            (made("loading"), 200, 503),
            (made(age_s=0.5), 200, 200),
            (made(age_s=2.0), 503, 503),
            (made("failed"), 503, 503),
        ):
            probe.health = health
            for path, status in (("/healthz", alive), ("/readyz", ready)):
                got, _, body = await probe.ask(path)
                assert got == status
                shown: Any = json.loads(body)
                assert shown == {
                    "stage": health.stage,
                    "step": 7,
                    "step_age_s": health.step_age_s,
                }

    run(check)


def test_metrics_are_served_and_head_has_no_body() -> None:
    async def check(probe: Probe) -> None:
        status, head, body = await probe.ask("/metrics?name[]=x")
        assert status == 200
        assert b"things_total 3.0" in body
        assert b"Content-Type: text/plain; version=" in head
        assert f"Content-Length: {len(body)}".encode() in head
        assert (await probe.ask("/metrics", "HEAD"))[2] == b""

    run(check)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metricsx", 404), ("POST", "/metrics", 405)],
)
def test_nothing_else_is_there(method: str, path: str, status: int) -> None:
    async def check(probe: Probe) -> None:
        assert (await probe.ask(path, method))[0] == status

    run(check)


@pytest.mark.parametrize("data", [b"GET /metrics", b"x" * 100_000], ids=["half", "endless"])
def test_whoever_sends_no_request_is_cut_off(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(probe: Probe) -> None:
        try:
            assert await probe.raw(data) == b""
        except ConnectionResetError:
            assert len(data) > module.MAX_HEAD_BYTES, "what was sent was not read"
        assert (await probe.ask("/healthz"))[0] == 200

    monkeypatch.setattr(module, "REQUEST_S", 0.2)
    run(check)


def test_a_bad_or_taken_address_is_an_error_of_the_catalogue() -> None:
    async def check(probe: Probe) -> None:
        for listen, kind in (
            ("127.0.0.1:x", BAD_SETTING),
            ("", BAD_SETTING),
            (f"127.0.0.1:{probe.port}", PORT_IN_USE),
        ):
            with pytest.raises(OctavoError) as caught:
                await StatusServer(probe.registry, made).start(listen)
            assert caught.value.kind is kind

    run(check)


def test_an_address_of_the_sixth_version_has_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")

    async def check(probe: Probe) -> None:
        other = StatusServer(probe.registry, made)
        assert await other.start("[::1]:0")
        other.stop()

    run(check)
