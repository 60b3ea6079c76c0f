"""The operator on a real control plane, with a gateway that says what the test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.bounds import EVENTUALLY_S
from tests.cluster.api import Object
from tests.cluster.kubernetes import Kubernetes, condition
from tests.operator.api_proxy import ApiProxy
from tests.operator.fake_gateway import NOWHERE, FakeGateway
from tests.operator.operator_process import OperatorProcess, account
from tests.operator.test_operator_on_cluster import is_ready

SCALED = {"minReplicas": 0, "maxReplicas": 3, "idleSeconds": 10}


def service(**spec: object) -> Object:
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": {"engine": {}, "model": {"uri": "file:///models/chat"}, **spec},
    }


class World:
    """A namespace with an operator and one gateway."""

    def __init__(
        self, cluster: Kubernetes, operator: OperatorProcess, gateway: FakeGateway
    ) -> None:
        self.cluster = cluster
        self.operator = operator
        self.gateway = gateway

    @property
    def namespace(self) -> str:
        return self.operator.namespace

    def apply(self, **spec: object) -> None:
        self.cluster.kubectl.apply(service(**spec), namespace=self.namespace)

    def until(self, holds: Callable[[Object], bool], timeout_s: float = EVENTUALLY_S) -> Object:
        """Waits for the service."""
        return self.cluster.kubectl.until(
            holds, "ois", "chat", namespace=self.namespace, timeout_s=timeout_s
        )

    def pods(self) -> list[Object]:
        selector = "serving.octavo.dev/service=chat"
        return self.cluster.kubectl.list("pods", namespace=self.namespace, selector=selector)

    def until_loaded(self, number: int) -> None:
        """Waits until engines are there whose containers are ready."""
        self.operator.until(
            lambda: [condition(p, "ContainersReady") for p in self.pods()] == ["True"] * number,
            f"{number} engines loaded",
        )

    def report(self, *, routable: bool, state: str = "ready", detail: str = "") -> None:
        """Lets the gateway say the same of all engines that there are."""
        self.gateway.engines = [
            {
                "uid": pod["metadata"]["uid"],
                "pod": pod["metadata"]["name"],
                "service": f"{self.namespace}/chat",
                "state": state,
                "routable": routable,
                "detail": detail,
            }
            for pod in self.pods()
        ]

    def load(self, **numbers: float) -> None:
        """Lets the gateway tell of requests."""
        self.gateway.services = [{"service": f"{self.namespace}/chat", **numbers}]


@pytest.fixture
def world(cluster: Kubernetes, namespace: str) -> Iterator[World]:
    account(namespace).bring(cluster)
    with FakeGateway() as gateway, ApiProxy(cluster) as proxy:
        proxy.rewritten[NOWHERE] = "127.0.0.1"
        cluster.kubectl.apply(gateway.endpoints("gateway"), namespace=namespace)
        flags = (f"--gateway-service={namespace}/gateway", "--gateway-poll-s=0.3")
        with OperatorProcess(cluster, namespace, *flags, server=proxy.url) as operator:
            yield World(cluster, operator, gateway)


def test_an_engine_is_ready_when_requests_get_there(world: World) -> None:
    world.apply(replicas=2)
    world.until_loaded(2)
    world.report(routable=False, state="loading", detail="reads weights")
    found = world.until(lambda s: "reads weights" in str(s.get("status")))
    assert (condition(found, "Ready"), condition(found, "Routable")) == ("False", "False")
    assert [condition(pod, "Ready") for pod in world.pods()] == ["False", "False"]
    world.report(routable=True)
    found = world.until(lambda s: condition(s, "Ready") == "True")
    assert (condition(found, "Routable"), found["status"]["counts"]) == ("True", "2/2")
    world.operator.until(
        lambda: [condition(pod, "Ready") for pod in world.pods()] == ["True", "True"], "ready"
    )


def test_engines_that_do_not_compute_alike_are_told_to_whoever_describes_them(
    world: World,
) -> None:
    world.apply(replicas=2)
    world.until_loaded(2)
    world.report(routable=True)
    for engine, kind in zip(world.gateway.engines, ("avx2", "amx"), strict=True):
        engine["numerics_id"] = kind
    found = world.until(lambda s: condition(s, "Exact") == "False" and is_ready(s))
    assert found["status"]["numericsIDs"] == ["amx", "avx2"]
    described = world.cluster.kubectl("describe", "ois", "chat", namespace=world.namespace)
    assert "DifferentArithmetic" in described
    assert "engine.nodeSelector" in described


def test_an_engine_that_a_gateway_saw_fail_is_shut_out_and_comes_back(world: World) -> None:
    world.apply()
    world.until_loaded(1)
    world.report(routable=True)
    world.until(lambda s: condition(s, "Ready") == "True")
    world.report(routable=False, state="failed", detail="the device is lost")
    found = world.until(lambda s: condition(s, "Ready") == "False")
    assert "the device is lost" in str(found["status"])
    world.report(routable=True)
    world.until(lambda s: condition(s, "Ready") == "True")


def test_a_held_request_starts_an_engine_for_whoever_comes_and_idleness_ends_it(
    world: World,
) -> None:
    world.load(held=0, in_flight=0)
    world.apply(autoscaling=SCALED)
    # Whatever it begins with, without a request it goes to zero.
    world.report(routable=True)
    found = until_asleep(world)
    assert condition(found, "Ready") == "True", "asleep is no fault"
    world.load(held=1, in_flight=0, wanted_age_s=0.1)
    world.operator.until(world.pods, "started an engine")
    # Whoever asked has left, and what is being made for them goes on.
    world.load(held=0, in_flight=0, wanted_age_s=0.5)
    world.until_loaded(1)
    world.report(routable=True)
    world.until(lambda s: s["status"].get("counts") == "1/1" and condition(s, "Ready") == "True")
    world.load(held=0, in_flight=1, wanted_age_s=1.0)
    world.load(held=0, in_flight=0, wanted_age_s=120.0)
    until_asleep(world)


def until_asleep(world: World) -> Object:
    """Waits until no engine runs, with a gateway that can route to all that do."""

    def is_asleep(found: Object) -> bool:
        world.report(routable=True)
        return not world.pods() and found.get("status", {}).get("reason") == "ScaledToZero"

    return world.until(is_asleep)


def test_load_adds_engines_up_to_the_most(world: World) -> None:
    world.load(held=0, in_flight=1, wanted_age_s=0.0, queue_s=0.0)
    world.apply(autoscaling={"minReplicas": 1, "maxReplicas": 2, "idleSeconds": 10})
    world.until_loaded(1)
    world.report(routable=True)
    world.until(lambda s: condition(s, "Ready") == "True")
    world.load(held=0, in_flight=50, wanted_age_s=0.0, queue_s=60.0)
    world.until_loaded(2)
    world.report(routable=True)
    world.until(lambda s: s["status"].get("counts") == "2/2")
