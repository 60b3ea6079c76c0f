"""Engines that take mTLS only, behind real gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from structlog.testing import capture_logs
from tests.certificates import GATEWAY, Authority, Certificate, MountedSecret

from octavo.engine.config import EngineConfig
from octavo.engine.process import serve
from octavo.engine.server import EngineServer
from octavo.engine.session import EngineShell
from octavo.engine.spans import RequestSpans
from octavo.runtime.tls_folder import TlsFolder
from octavo.v1.errors import BAD_SETTING, OctavoError

ENGINE = "IP:127.0.0.1"

Ask = Callable[[Any], Awaitable[bytes]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "one")


@asynccontextmanager
async def listening(secret: MountedSecret) -> AsyncIterator[str]:
    """An engine that loads for ever; its address."""
    tls = TlsFolder(str(secret.folder), key="tls_dir", origin="engine", wall=time.time)
    shell = EngineShell(epoch=9, spans=RequestSpans())
    server = EngineServer(shell, lambda: "made-up", tls=tls, caller=GATEWAY)
    port = await server.start("127.0.0.1:0")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()


def shown(certificate: Certificate, *trusted: Authority) -> grpc.ChannelCredentials:
    roots = b"".join(authority.pem for authority in trusted)
    return grpc.ssl_channel_credentials(roots, certificate.key, certificate.pem)


async def first_of(call: Any) -> bytes:
    """Returns the first message of a stream, and ends it."""
    first: bytes = await call.read()
    call.cancel()
    return first


async def state(channel: Any) -> bytes:
    return await first_of(channel.unary_stream("/octavo.v1.Engine/State")(b""))


async def session(channel: Any) -> bytes:
    return await first_of(channel.stream_stream("/octavo.v1.Engine/Session")())


async def health(channel: Any) -> bytes:
    answer: bytes = await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    return answer


async def watch(channel: Any) -> bytes:
    return await first_of(channel.unary_stream("/grpc.health.v1.Health/Watch")(b""))


async def reflection(channel: Any) -> bytes:
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    call = channel.stream_stream(path)()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString())
    return await first_of(call)


@pytest.mark.parametrize("ask", [state, session, health, watch, reflection])
def test_every_service_answers_the_gateway_and_refuses_whoever_has_another_name(
    authority: Authority, tmp_path: Path, ask: Ask
) -> None:
    async def scenario() -> None:
        secret = MountedSecret(tmp_path / "tls").put(authority.issue(ENGINE), authority)
        async with listening(secret) as address, asyncio.timeout(20):
            gateway = authority.issue("DNS:gateway.example", f"URI:{GATEWAY}")
            async with grpc.aio.secure_channel(address, shown(gateway, authority)) as channel:
                assert await ask(channel)
            other = authority.issue(f"URI:{GATEWAY}x", "DNS:other")
            async with grpc.aio.secure_channel(address, shown(other, authority)) as channel:
                with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ask(channel)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            names = f"{GATEWAY}x, other"
            assert caught.value.details() == (
                f"the caller's certificate bears {names}, not {GATEWAY}"
            )
            [line] = [line for line in logs if line["event"] == "caller_refused"]
            assert line["names"] == names.split(", ")

    asyncio.run(scenario())


def test_a_method_that_does_not_exist_is_nobody_s(authority: Authority, tmp_path: Path) -> None:
    async def scenario() -> None:
        secret = MountedSecret(tmp_path / "tls").put(authority.issue(ENGINE), authority)
        gateway = shown(authority.issue(f"URI:{GATEWAY}"), authority)
        async with (
            listening(secret) as address,
            grpc.aio.secure_channel(address, gateway) as channel,
        ):
            call: Any = channel.unary_unary("/octavo.v1.Engine/Nothing")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"")
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(scenario())


def test_new_connections_meet_the_newest_certificate_and_its_authorities(
    authority: Authority, tmp_path: Path
) -> None:
    async def scenario() -> None:
        new = Authority(tmp_path, "new")
        secret = MountedSecret(tmp_path / "tls").put(authority.issue(ENGINE), authority)
        old_caller = shown(authority.issue(f"URI:{GATEWAY}"), authority, new)
        new_caller = shown(new.issue(f"URI:{GATEWAY}"), new)
        async with listening(secret) as address, asyncio.timeout(30):
            first = grpc.aio.secure_channel(address, old_caller)
            assert await state(first)
            secret.put(new.issue(ENGINE), new)
            async with grpc.aio.secure_channel(address, new_caller) as second:
                assert await state(second)
            assert await state(first), "a connection that is open stays"
            async with grpc.aio.secure_channel(address, old_caller) as third:
                with pytest.raises(grpc.aio.AioRpcError):
                    await state(third)
            secret.put_data({"tls.key": b"half"})
            async with grpc.aio.secure_channel(address, new_caller) as fourth:
                assert await state(fourth), "the last good certificate goes on"
            await first.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tls_dir": "x"}, "--tls-dir needs the name of whoever may call"),
        ({"tls_client": "x"}, "there is no --tls-dir: nobody would be asked for the name"),
        ({"tls_dir": "x", "tls_client": "x", "plaintext": True}, "--tls-dir excludes it"),
        ({"tls_dir": "/nowhere", "tls_client": "x"}, "tls.crt: No such file or directory"),
    ],
)
def test_settings_that_would_let_nobody_or_everybody_in_stop_the_start(
    settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(OctavoError) as caught:
        serve(EngineConfig(listen="127.0.0.1:0", metrics_listen="", **settings), {})
    assert caught.value.kind is BAD_SETTING
    assert caught.value.message.endswith(f"(engine): {reason}")
