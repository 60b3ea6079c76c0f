"""Discovery of a real API server's objects. A gateway that lives by it: test_kubernetes_gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes
from tests.faults.proxy import Proxy, Way
from tests.gateway.fake_api_server import ApiServer, api_server
from tests.gateway.harness import until
from tests.gateway.manifests import (
    endpoint_slice,
    engine_deployment,
    engine_service,
    inference_service,
)

from octavo.gateway import reflector
from octavo.gateway.discovery import Discovered, Endpoint, Service
from octavo.gateway.kubernetes_discovery import KubernetesDiscovery
from octavo.operator.crd import definition
from octavo.runtime.env import SystemEnv
from octavo.v1.errors import BAD_SETTING, OctavoError


class Finding:
    """A discovery at work, and what it found last."""

    def __init__(self, *namespaces: str) -> None:
        self.discovery = KubernetesDiscovery(namespaces, env=SystemEnv())
        self.found: list[Discovered] = []

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self.found[-1].endpoints if self.found else ()

    @property
    def services(self) -> tuple[Service, ...]:
        return (self.found[-1].services or ()) if self.found else ()


@contextlib.asynccontextmanager
async def finding(*namespaces: str) -> AsyncIterator[Finding]:
    made = Finding(*namespaces)
    task = asyncio.create_task(made.discovery.run(made.found.append))
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def kubectl(cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The administrator's, with our resource known and found by whoever looks for a cluster."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    name = definition()["metadata"]["name"]
    cluster.kubectl.apply(definition())
    cluster.kubectl("wait", "--for", "condition=Established", f"crd/{name}")
    return cluster.kubectl


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_without_a_way_to_a_cluster_the_start_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(OctavoError) as caught:
        KubernetesDiscovery([], env=SystemEnv())
    assert caught.value.kind is BAD_SETTING
    assert "neither a service account nor a KUBECONFIG" in caught.value.message


def kubeconfig_of(server: ApiServer, folder: Path, token: str) -> Path:
    (folder / "token").write_text(token)
    cluster = {"name": "c", "cluster": {"server": server.url}}
    user = {"name": "u", "user": {"tokenFile": str(folder / "token")}}
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [cluster],
        "users": [user],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def test_a_token_that_was_replaced_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reflector, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(reflector, "LAST_RETRY_S", 0.1)

    async def scenario() -> None:
        async with api_server() as server:
            server.token = "new"
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(server, tmp_path, "old")))
            async with finding("a") as made:
                await until(lambda: made.discovery.is_away)
                (tmp_path / "token").write_text("new")
                await until(lambda: len(made.found) == 1)
                slices = "apis/discovery.k8s.io/v1/namespaces/a/endpointslices"
                await until(lambda: slices in server.watches)
                (tmp_path / "token").unlink()
                await server.stop()
                await server.start()
                await asyncio.sleep(0.3)
                (tmp_path / "token").write_text("newer")
                server.token = "newer"
                await until(lambda: not made.discovery.is_away)

    run(scenario)


def test_pods_are_found_ready_or_not_and_are_terminating_when_they_are_deleted(
    kubectl: Any, namespace: str
) -> None:
    async def scenario() -> None:
        async with finding(namespace) as made:
            await until(lambda: made.found == [Discovered(endpoints=(), services=())], 10)
            kubectl.apply(
                inference_service("one"),
                engine_service("one"),
                engine_deployment("one", 2, behaviour="unready"),
                namespace=namespace,
            )
            await until(lambda: len(made.endpoints) == 2, 30)
            await until(lambda: len(made.services) == 1, 5)
            [service] = made.services
            assert (service.id, service.names) == (f"{namespace}/one", ("tiny",))
            assert service.created_unix_s > 1_700_000_000
            pods = {p["metadata"]["uid"]: p for p in kubectl.list("pod", namespace=namespace)}
            for endpoint in made.endpoints:
                pod = pods[endpoint.uid]
                assert endpoint.pod == f"{namespace}/{pod['metadata']['name']}"
                assert endpoint.address == f"{pod['status']['podIP']}:50051"
                assert endpoint.service == f"{namespace}/one"
                assert not endpoint.terminating
            kubectl("scale", "deployment/one-engine", "--replicas=1", namespace=namespace)
            await until(lambda: [e.terminating for e in made.endpoints].count(True) == 1, 10)
            await until(lambda: len(made.endpoints) == 1, 10)
            kubectl("delete", "inferenceservice/one", namespace=namespace)
            await until(lambda: made.services == (), 10)

    run(scenario)


def test_pods_with_tls_and_without_are_told_apart_while_one_replaces_the_other(
    kubectl: Any, namespace: str
) -> None:
    """Kubernetes itself lists each pod under the ports that it has."""

    async def scenario() -> None:
        async with finding(namespace) as made:
            plain, secure = (engine_deployment("one", 1, port=port) for port in ("grpc", "grpcs"))
            kubectl.apply(
                inference_service("one"), engine_service("one"), plain, namespace=namespace
            )
            await until(lambda: [e.tls_name for e in made.endpoints] == [""], 30)
            secure["metadata"]["name"] = "one-engine-of-next-revision"
            kubectl.apply(secure, namespace=namespace)
            name = f"one-engine.{namespace}.svc"
            await until(lambda: {e.tls_name for e in made.endpoints} == {"", name}, 30)
            assert {e.address.rpartition(":")[2] for e in made.endpoints} == {"50051"}
            kubectl("delete", "deployment/one-engine", namespace=namespace)
            await until(lambda: [e.tls_name for e in made.endpoints] == [name], 30)

    run(scenario)


def _namespaces(made: Finding) -> set[str]:
    return {e.pod.partition("/")[0] for e in made.endpoints}


def test_only_the_namespaces_that_were_named_are_looked_at(
    cluster: Kubernetes, kubectl: Any, namespace: str
) -> None:
    async def scenario() -> None:
        with cluster.namespace() as other:
            for each in (namespace, other):
                kubectl.apply(inference_service("one"), namespace=each)
                kubectl.apply(endpoint_slice("one", 5, uid=each), namespace=each)
            async with finding(namespace) as made, finding() as everywhere:
                await until(lambda: len(made.services) == len(made.endpoints) == 1, 10)
                assert made.services[0].namespace == namespace
                await until(lambda: _namespaces(everywhere) >= {namespace, other}, 10)
            async with finding(namespace, other) as both:
                await until(lambda: len(both.endpoints) == 2, 10)

    run(scenario)


def test_a_version_that_is_too_old_is_listed_anew(
    control_plane: ControlPlane, kubectl: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(reflector, "LAST_RETRY_S", 0.5)
    original = reflector.Reflector._list
    asked: list[str] = []

    async def lists_the_past(self: Any, client: Any) -> str:
        version = await original(self, client)
        asked.append(self._path)
        return "1" if asked.count(self._path) == 1 else version

    monkeypatch.setattr(reflector.Reflector, "_list", lists_the_past)
    # What it remembers begins with its start.
    control_plane.kill("kube-apiserver")
    control_plane.restart("kube-apiserver")

    async def scenario() -> None:
        async with finding(namespace) as made:
            await until(lambda: all(asked.count(path) >= 2 for path in asked) and asked != [], 20)
            kubectl.apply(endpoint_slice("one", 5, uid="u"), namespace=namespace)
            await until(lambda: len(made.endpoints) == 1, 10)
            assert max(map(asked.count, asked)) <= 3

    run(scenario)


def test_a_watch_that_has_gone_silent_is_noticed(
    kubectl: Any, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reflector, "WATCH_S", 3)
    monkeypatch.setattr(reflector, "SILENCE_S", 1)
    monkeypatch.setattr(reflector, "ANSWER_S", 1.0)
    monkeypatch.setattr(reflector, "LAST_RETRY_S", 0.5)

    async def scenario() -> None:
        view = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
        target = int(view["clusters"][0]["cluster"]["server"].rpartition(":")[2])
        async with Proxy(target) as proxy:
            view["clusters"][0]["cluster"]["server"] = f"https://{proxy.address}"
            path = tmp_path / "kubeconfig"
            path.write_text(json.dumps(view))
            monkeypatch.setenv("KUBECONFIG", str(path))
            async with finding(namespace) as made:
                await until(lambda: bool(made.found), 10)
                proxy.hold(Way.TO_CLIENT)
                await asyncio.to_thread(
                    kubectl.apply, endpoint_slice("one", 5, uid="u"), namespace=namespace
                )
                await until(lambda: made.discovery.is_away, 10)
                assert made.endpoints == ()
                proxy.release(Way.TO_CLIENT)
                await until(lambda: len(made.endpoints) == 1, 10)
                await until(lambda: not made.discovery.is_away, 10)

    run(scenario)
