"""mTLS between processes: certificates that are replaced, have ended, or are of another issuer.

Each test leaves the two engines and their gateway as it found them: with good certificates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tests.bounds import EVENTUALLY_S
from tests.certificates import GATEWAY, Authority, Certificate, MountedSecret
from tests.faults.deployment import Deployment, Engine
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.workload import bodies, body

from octavo.v1 import engine_pb2, engine_pb2_grpc

ENGINE = "IP:127.0.0.1"


class Secured:
    """Two engines that take mTLS only, a gateway, and what each has mounted."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self._runner = asyncio.Runner()
        self.authority = Authority(folder, "first")
        self.foreign = Authority(folder, "foreign")
        names = ("gateway", "engine-0", "engine-1")
        self.gateway, *self.engines = (MountedSecret(folder / name) for name in names)
        self.renew()
        self.deployment = Deployment(
            folder,
            own=[self._engine(number, model) for number in range(2)],
            gateway_flags=["--engine-tls-dir", str(self.gateway.folder)],
        )

    def _engine(self, number: int, model: Path) -> Engine:
        where = str(self.engines[number].folder)
        flags = ["--drain-s", "0.3", "--tls-dir", where, "--tls-client", GATEWAY]
        return Engine(f"engine-{number}", model, folder=self.folder, flags=flags)

    def renew(self, *trusted: Authority) -> None:
        """Gives everybody a new certificate.

        Args:
            trusted: by everybody; none: the authority that signs.
        """
        trusted = trusted or (self.authority,)
        self.gateway.put(self.authority.issue(f"URI:{GATEWAY}"), *trusted)
        for secret in self.engines:
            secret.put(self.authority.issue(ENGINE), *trusted)

    def run(self, scenario: Callable[[Deployment], Awaitable[None]]) -> None:
        """Runs a scenario; afterwards all is well."""

        async def whole() -> None:
            await scenario(self.deployment)
            self.renew()
            await self.deployment.gateway.engines("ready", 2)
            await self.deployment.idle()

        self._runner.run(whole())

    async def reconnect(self) -> None:
        """Has another gateway in the place of the first one: all its connections are new."""
        gateway = self.deployment.gateway
        gateway.kill()
        gateway.start()
        await gateway.logged("gateway_listening")

    def __enter__(self) -> Secured:
        self._runner.run(self.deployment.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self.deployment.__aexit__(None, None, None))
        self._runner.close()


@pytest.fixture(scope="module")
def secured(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured"), model) as made:
        yield made


def test_streams_are_byte_equal_while_all_certificates_and_their_authority_are_replaced(
    secured: Secured,
) -> None:
    async def scenario(d: Deployment) -> None:
        asked = bodies(10, 300)
        expected = await undisturbed(d, asked)

        async def rotate() -> None:
            old, new = secured.authority, Authority(secured.folder, "second")
            secured.renew()
            secured.renew(old, new)
            secured.authority = new
            secured.renew(old, new)
            assert all(answer.ok for answer in await d.ask_all(bodies(4, 5)))
            secured.renew()
            assert all(answer.ok for answer in await d.ask_all(bodies(4, 5)))

        run = await disturbed(d, asked, expected, rotate, after_s=0.05)
        assert run.wrong == []
        assert "session_lost" not in d.gateway.log
        await secured.reconnect()
        await d.gateway.engines("ready", 2)
        assert [answer.content for answer in await d.ask_all(asked)] == expected

    secured.run(scenario)


def bad_certificates(secured: Secured) -> dict[str, tuple[Certificate, str]]:
    return {
        "ended": (secured.authority.issue(ENGINE, ends_in_s=-60), "has expired"),
        "foreign": (secured.foreign.issue(ENGINE), "of an issuer that is not trusted"),
        "another's": (secured.authority.issue("IP:127.0.0.2"), "bears another name"),
    }


def test_an_engine_whose_certificate_is_bad_gets_nothing_and_the_other_one_serves(
    secured: Secured,
) -> None:
    async def scenario(d: Deployment) -> None:
        for certificate, reason in bad_certificates(secured).values():
            secured.engines[0].put(certificate, secured.authority)
            await secured.reconnect()
            await d.gateway.engines("ready", 1)
            await d.gateway.logged(reason)
            answers = await d.ask_all(bodies(6, 5))
            assert [a.ok for a in answers] == [True] * 6
            assert {a.route[0] for a in answers} == {d.engines[1].address}
            secured.renew()
            await d.gateway.engines("ready", 2)

    secured.run(scenario)


async def until_refused(d: Deployment, reason: str) -> None:
    """Asks until the 503 gives the reason: before, another engine may be on its way."""
    async with asyncio.timeout(EVENTUALLY_S):
        while True:
            async with d.session.post(f"{d.gateway.url}/v1/completions", json=body(1, 5)) as answer:
                assert answer.status == 503
                if reason in (await answer.json())["error"]["message"]:
                    return
            await asyncio.sleep(0.05)


def test_when_no_engine_is_trusted_requests_get_503_with_the_reason(secured: Secured) -> None:
    async def scenario(d: Deployment) -> None:
        for secret in secured.engines:
            secret.put(secured.authority.issue(ENGINE, ends_in_s=-60), secured.authority)
        await secured.reconnect()
        await d.gateway.logged("engine_untrusted")
        await until_refused(d, "the engine's certificate has expired")
        await d.engines[0].logged("the certificate ended at")

    secured.run(scenario)


def test_a_gateway_whose_certificate_has_ended_says_so_and_goes_on_with_the_next_one(
    secured: Secured,
) -> None:
    async def scenario(d: Deployment) -> None:
        ended = secured.authority.issue(f"URI:{GATEWAY}", ends_in_s=-60)
        secured.gateway.put(ended, secured.authority)
        await secured.reconnect()
        await d.gateway.logged("the gateway's certificate")
        await until_refused(d, "the gateway's certificate")

    secured.run(scenario)


@pytest.mark.parametrize("stranger", ["plaintext", "no certificate", "foreign", "another name"])
def test_nobody_but_the_gateway_may_call_an_engine(secured: Secured, stranger: str) -> None:
    async def scenario(d: Deployment) -> None:
        own = secured.authority
        shown = {
            "foreign": secured.foreign.issue(f"URI:{GATEWAY}"),
            "another name": own.issue(f"URI:{GATEWAY}-2", "DNS:octavo-gateway"),
        }
        pair = shown.get(stranger)
        credentials = grpc.ssl_channel_credentials(
            own.pem, pair.key if pair else None, pair.pem if pair else None
        )
        address = d.engines[0].address
        channel = grpc.aio.secure_channel(address, credentials)
        if stranger == "plaintext":
            channel = grpc.aio.insecure_channel(address)
        async with channel:
            call = engine_pb2_grpc.EngineStub(channel).State(engine_pb2.StateRequest(), timeout=20)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(call))
        named = stranger == "another name"
        code = grpc.StatusCode.PERMISSION_DENIED if named else grpc.StatusCode.UNAVAILABLE
        assert caught.value.code() is code
        if named:
            await d.engines[0].logged("caller_refused")

    secured.run(scenario)
