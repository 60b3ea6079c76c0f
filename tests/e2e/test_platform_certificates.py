"""A service goes from plaintext to mTLS and back, and all certificates are replaced meanwhile.

Streams are open all the time. The test leaves release and service as it found them.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.certificates import Authority, Certificate
from tests.cluster.api import Object
from tests.cluster.kubernetes import condition
from tests.e2e.load import Questions
from tests.e2e.release import (
    ENGINE_STATUS_PORT,
    RELEASE,
    STATUS_PORT,
    VALUES,
    Platform,
    url_of,
)
from tests.e2e.service import Service

from octavo.runtime.certificates import valid_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

SECRET = "engine-tls"
ENDS = "certificate_expiration_timestamp_seconds "
WITH_CERTIFICATE: Object = VALUES | {
    "gateway": VALUES["gateway"] | {"engineTLS": {"secretName": SECRET}}
}


class Sides:
    """Gateways and engines, and the Secrets that they mount.

    Args:
        platform: has the gateways.
        service: has the engines.
    """

    def __init__(self, platform: Platform, service: Service) -> None:
        self._platform = platform
        self._service = service
        self._step = 0

    def renew(self, signer: Authority, *trusted: Authority) -> dict[str, float]:
        """Puts new certificates into both Secrets; returns the end of each by its namespace."""
        self._step += 1
        ends_in_s = 20 * 86400.0 + 3600.0 * self._step  # so that each is known by its end
        account = f"spiffe://cluster.local/ns/{self._platform.namespace}/sa/{RELEASE}-gateway"
        host = f"{self._service.name}-engine.{self._service.namespace}.svc"
        names = {self._platform.namespace: f"URI:{account}", self._service.namespace: f"DNS:{host}"}
        made = {where: signer.issue(name, ends_in_s=ends_in_s) for where, name in names.items()}
        for namespace, certificate in made.items():
            self._put(namespace, certificate, trusted)
        return {namespace: valid_until(each.pem) for namespace, each in made.items()}

    def rotate(self, signer: Authority, *trusted: Authority) -> None:
        """The same, and returns when all pods have them, which kubelet is told to look at."""
        ends = self.renew(signer, *trusted)
        kubectl = self._platform.node.kubectl
        for pods, port in (
            (self._platform.pods("gateway"), STATUS_PORT),
            (self._service.engines(), ENGINE_STATUS_PORT),
        ):
            for pod in pods:
                name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
                kubectl.annotate("pod", name, namespace=namespace, step=str(self._step))
                self._until(pod, port, ends[namespace])

    def _put(self, namespace: str, made: Certificate, trusted: tuple[Authority, ...]) -> None:
        bundle = b"".join(authority.pem for authority in trusted)
        data = {"tls.crt": made.pem, "tls.key": made.key, "ca.crt": bundle}
        secret: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET},
            "type": "kubernetes.io/tls",
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        self._platform.node.kubectl.apply(secret, namespace=namespace)

    def _until(self, pod: Object, port: int, ends: float) -> None:
        url, deadline = url_of(pod, port) + "/metrics", time.monotonic() + 150.0

        async def read(session: aiohttp.ClientSession) -> list[str]:
            async with session.get(url) as answer:
                return (await answer.text()).splitlines()

        while True:
            (row,) = [r for r in self._platform.run(read) if ENDS in r and r[0] != "#"]
            if float(row.rpartition(" ")[2]) == ends:
                return
            assert time.monotonic() < deadline, f"{row} instead of {ends}"
            time.sleep(0.5)


@pytest.fixture
def authority(platform: Platform, service: Service, tmp_path: Path) -> Iterator[Authority]:
    """Signed what both Secrets have; the gateways mount theirs, the engines do not yet."""
    made = Authority(tmp_path, "first")
    service.scale(1)
    Sides(platform, service).renew(made, made)
    platform.install(WITH_CERTIFICATE)
    yield made
    service.patch(engine={"tls": None})
    service.settled()
    platform.install(VALUES)
    for namespace in (platform.namespace, service.namespace):
        platform.node.kubectl("delete", "secret", SECRET, namespace=namespace)


def test_mtls_comes_its_certificates_and_authority_are_replaced_and_it_goes_without_a_failure(
    platform: Platform,
    service: Service,
    questions: Questions,
    authority: Authority,
    tmp_path: Path,
) -> None:
    sides, second = Sides(platform, service), Authority(tmp_path, "second")

    def secure() -> None:
        service.patch(engine={"tls": {"secretName": SECRET}})
        service.settled()

    questions.during(secure)
    assert condition(service.get(), "CertificateValid") == "True"
    (engine,), before = service.engines(), service.rollouts()

    def rotate() -> None:
        sides.rotate(authority, authority, second)
        sides.rotate(second, authority, second)
        sides.rotate(second, second)

    questions.during(rotate)
    questions.during(lambda: platform.restart("gateway"))
    (same,) = service.engines()
    assert same["metadata"]["uid"] == engine["metadata"]["uid"], "its new connections are of now"
    assert same["status"]["containerStatuses"][0]["restartCount"] == 0
    assert service.rollouts() == before

    def open_up() -> None:
        service.patch(engine={"tls": None})
        service.settled()

    questions.during(open_up)
