"""GrpcLink to engines that take mTLS only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from tests.certificates import GATEWAY, Authority, MountedSecret
from tests.gateway.fake_engine import FakeEngine

from octavo.gateway.grpc_link import GrpcLink
from octavo.gateway.link import Inbound, LinkLostError, UntrustedError
from octavo.runtime.tls_folder import TlsFolder
from octavo.v1 import engine_pb2

NAME = "llama-engine.team.svc"


@dataclass
class Sides:
    """An engine, a link to it, and what both show."""

    folder: Path
    authority: Authority
    engine: FakeEngine
    secret: MountedSecret
    link: GrpcLink

    async def restart(self, authority: Authority, *names: str, ends_in_s: float = 3600.0) -> None:
        """Starts the engine again, with another certificate and one authority to trust."""
        made = authority.issue(*names, ends_in_s=ends_in_s)
        self.engine.credentials = grpc.ssl_server_credentials(
            [(made.key, made.pem)], authority.pem, require_client_auth=True
        )
        await self.engine.kill()
        await self.engine.restart()


def run(tmp_path: Path, scenario: Callable[[Sides], Awaitable[None]]) -> None:
    async def within() -> None:
        authority = Authority(tmp_path, "one")
        made = authority.issue(f"DNS:{NAME}")
        credentials = grpc.ssl_server_credentials(
            [(made.key, made.pem)], authority.pem, require_client_auth=True
        )
        engine = await FakeEngine(credentials=credentials).start()
        secret = MountedSecret(tmp_path / "tls")
        secret.put(authority.issue(f"URI:{GATEWAY}"), authority)
        tls = TlsFolder(str(secret.folder), key="k", origin="gateway", wall=time.time)
        link = GrpcLink(engine.address, name=NAME, tls=tls)
        async with asyncio.timeout(60):
            await scenario(Sides(tmp_path, authority, engine, secret, link))
        await link.close()
        await engine.kill()

    asyncio.run(within())


async def distrusted(link: GrpcLink, reason: str) -> None:
    """Waits until the link says that; between two tries gRPC repeats what it said last."""
    while True:
        stream = link.open_state()
        try:
            await stream.recv()
        except LinkLostError as error:
            if isinstance(error, UntrustedError) and reason in error.reason:
                return
            await asyncio.sleep(0.05)
        finally:
            stream.close()


async def heard(stream: Inbound) -> bool:
    """Waits for a message."""
    return await stream.recv() is not None


async def answers(link: GrpcLink) -> bool:
    with suppress(LinkLostError):
        return await heard(link.open_state())
    return False


async def lost(stream: Inbound) -> None:
    with suppress(LinkLostError):
        while True:
            await stream.recv()


def test_new_streams_show_the_newest_certificate_and_open_ones_go_on(tmp_path: Path) -> None:
    async def scenario(sides: Sides) -> None:
        link, first = sides.link, sides.link.open_state()
        assert await heard(first)
        new = Authority(tmp_path, "two")
        sides.secret.put(new.issue(f"URI:{GATEWAY}"), sides.authority, new)
        await distrusted(link, "does not trust the gateway's certificate")
        sides.engine.set_stage(engine_pb2.STAGE_READY, "told to all streams")
        assert await heard(first), "its connection is the one before"
        sides.secret.put(sides.authority.issue(f"URI:{GATEWAY}"), sides.authority, new)
        second = link.open_state()
        assert await heard(second)
        first.close()
        sides.engine.set_stage(engine_pb2.STAGE_READY, "told to all streams")
        assert await heard(second)
        await link.close()
        await lost(second)

    run(tmp_path, scenario)


def test_why_an_engine_is_not_trusted_is_said_in_plain_words(tmp_path: Path) -> None:
    async def scenario(sides: Sides) -> None:
        await sides.restart(sides.authority, f"DNS:{NAME}", ends_in_s=-60)
        await distrusted(sides.link, "the engine's certificate has expired")
        await sides.restart(sides.authority, "DNS:other-engine.team.svc")
        await distrusted(sides.link, "the engine's certificate bears another name")
        await sides.restart(Authority(tmp_path, "foreign"), f"DNS:{NAME}")
        await distrusted(sides.link, "the engine's certificate is of an issuer that is not trusted")
        sides.engine.credentials = None
        await sides.engine.kill()
        await sides.engine.restart()
        await distrusted(sides.link, "the engine has no certificate: it speaks plaintext")
        await sides.restart(sides.authority, f"DNS:{NAME}")
        async with asyncio.timeout(20):
            while not await answers(sides.link):
                await asyncio.sleep(0.05)

    run(tmp_path, scenario)


def test_a_gateway_whose_certificate_has_ended_says_so_of_itself(tmp_path: Path) -> None:
    async def scenario(sides: Sides) -> None:
        ended = sides.authority.issue(f"URI:{GATEWAY}", ends_in_s=-60)
        sides.secret.put(ended, sides.authority)
        await distrusted(sides.link, "the gateway's certificate is of no use: ")

    run(tmp_path, scenario)


def test_without_a_certificate_nothing_is_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        empty = TlsFolder(str(tmp_path), key="k", origin="gateway", wall=time.time)
        for tls, why in ((None, "mTLS only"), (empty, "the gateway has no certificate: tls.crt")):
            link = GrpcLink(engine.address, name=NAME, tls=tls)
            session = link.open_session()
            for attempt in (session.recv(), session.send(b""), link.fetch_card().recv()):
                with pytest.raises(UntrustedError, match=why):
                    await attempt
            session.close()
            await link.close()
        await engine.kill()

    asyncio.run(scenario())
