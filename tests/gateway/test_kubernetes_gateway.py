"""A gateway process in front of engines that it finds in a real cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.bounds import EVENTUALLY_S
from tests.charts.account import Account, rights
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes
from tests.faults.deployment import Engine
from tests.faults.tiny_llama import write_tiny_llama
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.manifests import endpoint_slice, inference_service
from tests.gateway.script import Script
from tests.gateway.test_process import chat, serving, stream_to_end
from tests.ports import lasting_port

from octavo.operator.crd import definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A gateway process, and who watches it."""

    client: httpx.AsyncClient
    watcher: httpx.AsyncClient
    kubectl: Any
    namespace: str

    async def chat(self, body: dict[str, object]) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=body, timeout=120)

    async def apply(self, *objects: dict[str, Any]) -> None:
        await asyncio.to_thread(self.kubectl.apply, *objects, namespace=self.namespace)

    async def run(self, *arguments: str) -> None:
        await asyncio.to_thread(self.kubectl, *arguments, namespace=self.namespace)

    async def state(self) -> dict[str, Any]:
        answer = (await self.watcher.get("/state")).json()
        return dict(answer)

    async def service(self) -> dict[str, Any]:
        [service] = (await self.state())["services"]
        return dict(service)

    async def routable(self, *uids: str, within_s: float = EVENTUALLY_S) -> None:
        """Waits until requests go to these pods and to no others."""
        async with asyncio.timeout(within_s):
            while True:
                engines = (await self.state())["engines"]
                if sorted(e["uid"] for e in engines if e["routable"]) == sorted(uids):
                    return
                await asyncio.sleep(0.05)

    async def models(self, *names: str, within_s: float = EVENTUALLY_S) -> None:
        """Waits until these are listed."""
        async with asyncio.timeout(within_s):
            while True:
                listed = (await self.client.get("/v1/models")).json()["data"]
                if [m["id"] for m in listed] == list(names):
                    return
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def gateway(
    cluster: Kubernetes, namespace: str, *flags: str, account: Account | None = None
) -> AsyncIterator[Gateway]:
    """Runs a gateway with the rights that the chart gives it and no others.

    Args:
        cluster: where it looks for engines.
        namespace: of its services.
        flags: settings.
        account: one that was brought; else that of a gateway for this namespace alone.
    """
    name = definition()["metadata"]["name"]
    if account is None:
        account = Account("gateway", namespace)
        account.bring(cluster)
    cluster.kubectl("wait", "--for", "condition=Established", f"crd/{name}")
    port = lasting_port()
    flags = (
        *("--discover", "kubernetes", "--namespaces", ",".join(account.served)),
        *("--status-listen", f"127.0.0.1:{port}", *flags),
    )
    async with (
        kubeconfig(account, cluster) as path,
        serving(flags=flags, environ={"KUBECONFIG": path}) as (_, client),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as watcher,
    ):
        made = Gateway(client=client, watcher=watcher, kubectl=cluster.kubectl, namespace=namespace)
        async with asyncio.timeout(EVENTUALLY_S):
            while (await watcher.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        yield made


@contextlib.asynccontextmanager
async def kubeconfig(account: Account, cluster: Kubernetes) -> AsyncIterator[str]:
    """Writes how an account reaches the API server; gives the path."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        json.dump(account.kubeconfig(cluster), file)
        file.flush()
        yield file.name


@contextlib.asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[FakeEngine]:
    made = await FakeEngine(**settings).start()
    try:
        yield made
    finally:
        await made.kill()


def test_a_service_without_an_engine_holds_its_requests_until_one_is_there(
    cluster: Kubernetes, namespace: str
) -> None:
    async def scenario() -> None:
        async with gateway(cluster, namespace) as made, engine() as one:
            assert (await made.state())["engines"] == (await made.state())["services"] == []
            unknown = await made.client.post("/v1/chat/completions", json=chat())
            assert unknown.status_code == 404
            await made.apply(inference_service("one"))
            await made.models("tiny")
            streaming = asyncio.create_task(stream_to_end(made.client))
            whole = asyncio.create_task(
                made.client.post("/v1/chat/completions", json=chat(model=f"{namespace}/one"))
            )
            async with asyncio.timeout(EVENTUALLY_S):
                while (await made.service())["held"] != 2:
                    await asyncio.sleep(0.05)
            assert (await made.service())["wanted_age_s"] < 10
            await made.apply(endpoint_slice("one", one._port, uid="u1"))
            assert (await streaming).endswith("data: [DONE]\n\n")
            answer = await whole
            assert answer.status_code == 200
            assert answer.headers["x-octavo-route"].startswith(f"{namespace}/one-pod-u1;")
            assert len(one.requests) == 3, "the probe was first"
            assert one.requests[0].max_tokens == 1
            [told] = (await made.state())["engines"]
            assert told["address"] == one.address
            assert (told["pod"], told["service"]) == ("one-pod-u1", f"{namespace}/one")
            service = await made.service()
            assert service["held"] == 0
            assert service["prompt_tokens"] > 0

    asyncio.run(scenario())


def test_what_it_does_and_what_it_may_are_the_same(
    control_plane: ControlPlane, namespace: str
) -> None:
    async def scenario() -> None:
        async with gateway(control_plane, namespace) as made, engine() as one:
            await made.apply(inference_service("one"), endpoint_slice("one", one._port, uid="u1"))
            await made.routable("u1")

    asyncio.run(scenario())
    account = Account("gateway", namespace)
    used, refused = account.done(control_plane)
    assert refused == []
    assert [rights(role["rules"]) for role in account.roles] == [used]


def test_a_pod_that_is_replaced_at_its_address_or_terminates_cuts_nothing(
    cluster: Kubernetes, namespace: str
) -> None:
    async def scenario() -> None:
        def script(_: object) -> Script:
            return Script(delay_s=0.05, tokens=40)

        async with (
            gateway(cluster, namespace) as made,
            engine(script=script) as one,
            engine() as two,
        ):
            await made.apply(inference_service("one"), endpoint_slice("one", one._port, uid="u1"))
            await made.routable("u1")
            streaming = asyncio.create_task(stream_to_end(made.client))
            while len(one.requests) < 2:
                await asyncio.sleep(0.01)
            await made.apply(
                endpoint_slice("one", one._port, uid="u1", terminating=True),
                endpoint_slice("one", two._port, uid="u2"),
            )
            await made.routable("u2")
            assert (await made.client.post("/v1/chat/completions", json=chat())).status_code == 200
            await made.run("delete", f"endpointslice/one-{one._port}")
            assert (await streaming).endswith("data: [DONE]\n\n")
            async with asyncio.timeout(EVENTUALLY_S):
                while len((await made.state())["engines"]) != 1:
                    await asyncio.sleep(0.05)
            await two.restart()
            await made.apply(endpoint_slice("one", two._port, uid="u3"))
            await made.routable("u3")
            answer = await made.client.post("/v1/chat/completions", json=chat())
            assert answer.headers["x-octavo-route"].startswith(f"{namespace}/one-pod-u3;")

    asyncio.run(scenario())


def test_serving_needs_no_api_server(control_plane: ControlPlane, namespace: str) -> None:
    async def scenario() -> None:
        async with gateway(control_plane, namespace) as made, engine() as one, engine() as two:
            await made.apply(inference_service("one"), endpoint_slice("one", one._port, uid="u1"))
            await made.routable("u1")
            control_plane.kill("kube-apiserver")
            try:
                end = asyncio.get_running_loop().time() + 5
                while asyncio.get_running_loop().time() < end:
                    answer = await made.client.post("/v1/chat/completions", json=chat())
                    assert answer.status_code == 200
                    assert (await made.watcher.get("/readyz")).status_code == 200
                    await asyncio.sleep(0.1)
                metrics = (await made.watcher.get("/metrics")).text
                assert "octavo_gateway_discovery_away 1.0" in metrics
                await one.kill()
                await one.restart()
                await made.routable("u1")
            finally:
                # It dies with the thread that starts it; meanwhile the engines are silent.
                control_plane.restart("kube-apiserver")
            await made.apply(endpoint_slice("one", two._port, uid="u2"))
            await made.routable("u1", "u2")
            async with asyncio.timeout(EVENTUALLY_S):
                while "discovery_away 0.0" not in (await made.watcher.get("/metrics")).text:
                    await asyncio.sleep(0.1)

    asyncio.run(scenario())


@pytest.fixture
def other(cluster: Kubernetes) -> Iterator[str]:
    """A namespace beside one's own, until a test deletes it."""
    with cluster.namespace() as name:
        yield name


@pytest.fixture
def of_both(cluster: Kubernetes, namespace: str, other: str) -> Account:
    """The account of a gateway for both."""
    account = Account("gateway", namespace, other)
    account.bring(cluster)
    return account


def test_a_namespace_that_is_deleted_holds_up_no_other(
    cluster: Kubernetes, namespace: str, other: str, of_both: Account
) -> None:
    async def scenario() -> None:
        async with gateway(cluster, namespace, account=of_both) as made, engine() as one:
            cluster.kubectl.apply(inference_service("far"), namespace=other)
            await made.models("tiny")
            await asyncio.to_thread(cluster.delete_namespace, other)
            await made.apply(inference_service("one"), endpoint_slice("one", one._port, uid="u1"))
            await made.routable("u1")
            await made.models("tiny")
            answer = await made.client.post("/v1/chat/completions", json=chat())
            assert answer.headers["x-octavo-route"].startswith(f"{namespace}/one-pod-u1;")

    asyncio.run(scenario())


def test_a_namespace_that_was_deleted_before_the_start_holds_up_no_other(
    cluster: Kubernetes, namespace: str, other: str, of_both: Account
) -> None:
    async def scenario() -> None:
        cluster.delete_namespace(other)
        async with gateway(cluster, namespace, account=of_both) as made, engine() as one:
            metrics = (await made.watcher.get("/metrics")).text
            assert "octavo_gateway_namespaces_refused 1.0" in metrics
            assert "octavo_gateway_discovery_away 0.0" in metrics
            await made.apply(inference_service("one"), endpoint_slice("one", one._port, uid="u1"))
            await made.routable("u1")
            # It is back, with what the chart brings.
            cluster.kubectl("create", "namespace", other)
            of_both.bring_roles(cluster)
            cluster.kubectl.apply(
                inference_service("far", model={"uri": "file:///m", "servedNames": ["far"]}),
                namespace=other,
            )
            await made.models("tiny", "far")

    asyncio.run(scenario())


def test_a_service_that_is_deleted_lets_go_of_whom_it_holds(
    cluster: Kubernetes, namespace: str
) -> None:
    async def scenario() -> None:
        async with gateway(cluster, namespace) as made:
            await made.apply(inference_service("one"))
            await made.models("tiny")
            asking = asyncio.create_task(made.client.post("/v1/chat/completions", json=chat()))
            async with asyncio.timeout(EVENTUALLY_S):
                while (await made.service())["held"] != 1:
                    await asyncio.sleep(0.05)
            await made.run("delete", "inferenceservice/one")
            answer = await asking
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")

    asyncio.run(scenario())


def test_a_client_that_waits_and_leaves_has_been_heard(cluster: Kubernetes, namespace: str) -> None:
    async def scenario() -> None:
        async with gateway(cluster, namespace) as made:
            await made.apply(inference_service("one"))
            await made.models("tiny")
            for asks in (stream_to_end(made.client), made.chat(chat())):
                leaving = asyncio.create_task(asks)
                async with asyncio.timeout(20):
                    while (await made.service())["held"] != 1:
                        await asyncio.sleep(0.05)
                    leaving.cancel()
                    while (await made.service())["held"] != 0:
                        await asyncio.sleep(0.05)
            assert (await made.service())["wanted_age_s"] < 20, "an operator starts an engine"

    asyncio.run(scenario())


@pytest.mark.parametrize("spec", [{"replicas": 0}, {}], ids=["switched off", "too long"])
def test_whoever_waits_in_vain_is_told_when_to_come_back(
    cluster: Kubernetes, namespace: str, spec: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with gateway(cluster, namespace, "--hold-s", "0.3") as made:
            await made.apply(inference_service("one", **spec))
            await made.models("tiny")
            answer = await made.client.post("/v1/chat/completions", json=chat())
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_engine")
            assert int(answer.headers["retry-after"]) >= 1
            assert (await made.service())["wanted_age_s"] < 10

    asyncio.run(scenario())


def test_the_last_engine_leaves_in_the_middle_of_an_answer_that_goes_on_at_the_next(
    cluster: Kubernetes, namespace: str, tmp_path: Path
) -> None:
    """With real engines, as a service is scaled to zero at the wrong moment."""

    async def scenario() -> None:
        model = write_tiny_llama(tmp_path / "model")
        first, second = (
            Engine(name, model, folder=tmp_path, flags=("--drain-s", "0.2"))
            for name in ("first", "second")
        )
        body = chat(max_tokens=1500, seed=7, temperature=1.0, ignore_eos=True)
        async with gateway(cluster, namespace) as made:
            try:
                first.start()
                await made.apply(
                    inference_service("one"), endpoint_slice("one", first.port, uid="u1")
                )
                await made.routable("u1")
                expected = (await made.chat(body)).json()
                asking = asyncio.create_task(made.chat(body))
                async with asyncio.timeout(EVENTUALLY_S):
                    while (await made.service())["in_flight"] != 1:
                        await asyncio.sleep(0.01)
                first.send(signal.SIGTERM)
                await made.routable()
                async with asyncio.timeout(EVENTUALLY_S):
                    while (await made.service())["held"] != 1:
                        await asyncio.sleep(0.05)
                await made.run("delete", f"endpointslice/one-{first.port}")
                second.start()
                await made.apply(endpoint_slice("one", second.port, uid="u2"))
                answer = await asking
                assert answer.status_code == 200
                assert answer.json()["choices"] == expected["choices"]
            finally:
                first.kill()
                second.kill()

    asyncio.run(scenario())
