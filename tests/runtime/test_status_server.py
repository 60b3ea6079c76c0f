from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry, Counter
from tests.bounds import EVENTUALLY_S
from tests.ports import lasting_port, loopbacks, reached_by

from octavo.runtime import status_server as module
from octavo.runtime.status_server import StatusServer
from octavo.v1.errors import BAD_SETTING, PORT_IN_USE, OctavoError


@dataclass(frozen=True)
class Health:
    alive: bool = True
    ready: bool = True

    def shown(self) -> dict[str, object]:
        return {"is": "shown"}


def server(registry: CollectorRegistry, health: Callable[[], Health] = Health) -> StatusServer:
    return StatusServer(registry, health, key="status_listen", origin="test")


class Probe:
    """A status server, and a client on a raw socket."""

    def __init__(self) -> None:
        self.health = Health()
        self.registry = CollectorRegistry()
        Counter("things", "Things.", registry=self.registry).inc(3)
        self.server = server(self.registry, lambda: self.health)
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
            async with asyncio.timeout(EVENTUALLY_S):
                await check(probe)
        finally:
            probe.server.stop()

    asyncio.run(scenario())


def test_probes_get_health_and_readiness() -> None:
    async def check(probe: Probe) -> None:
        for alive, ready, healthz, readyz in (
            (True, True, 200, 200),
            (True, False, 200, 503),
            (False, False, 503, 503),
            (False, True, 503, 503),
        ):
            probe.health = Health(alive=alive, ready=ready)
            for path, status in (("/healthz", healthz), ("/readyz", readyz)):
                got, head, body = await probe.ask(path)
                assert got == status
                assert b"Content-Type: application/json" in head
                assert json.loads(body) == {"is": "shown"}

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
                await server(probe.registry).start(listen)
            assert caught.value.kind is kind
            assert kind is PORT_IN_USE or "status_listen" in caught.value.message

    run(check)


def test_an_address_of_the_sixth_version_has_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")

    async def check(probe: Probe) -> None:
        other = server(probe.registry)
        assert await other.start("[::1]:0")
        other.stop()

    run(check)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_all_addresses_are_those_of_both_families(host: str) -> None:
    """Kubelets probe a pod by the family of its cluster; engines that run have 0.0.0.0."""

    async def check(probe: Probe) -> None:
        other, port = server(probe.registry), lasting_port()
        assert await other.start(f"{host}:{port}") == port
        found = reached_by(port)
        other.stop()
        assert found == loopbacks()

    run(check)
