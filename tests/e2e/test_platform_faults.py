"""What breaks under a service, with streams open that must not notice.

Each test brings the service to the number of engines that it needs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.cluster.api import ApiError
from tests.cluster.kubernetes import condition
from tests.cluster.node_files import NODE
from tests.e2e.conftest import small
from tests.e2e.load import Questions, spread
from tests.e2e.release import Platform
from tests.e2e.service import CHILDREN, Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]


def test_a_killed_engine_pod_costs_no_stream(service: Service, questions: Questions) -> None:
    service.scale(2)
    victim = service.engines()[0]["metadata"]["name"]

    def kill() -> None:
        flags = ("delete", "pod", victim, "--grace-period=0", "--force")
        service.kubectl(*flags, namespace=service.namespace)
        service.settled(2)

    questions.during(kill)


def test_a_killed_engine_process_costs_no_stream_and_its_blocks_are_forgotten(
    platform: Platform, service: Service, questions: Questions
) -> None:
    service.scale(2)
    asked = spread(platform, "Killed", service.names())
    victim = service.engines()[0]
    engine = f"{service.namespace}/{victim['metadata']['name']}"
    its = [body for body, answer in asked if answer.route[0] == engine]

    def kill() -> None:
        platform.node.kill_container(victim)
        platform.until_restarted(victim)
        platform.until_state(victim, "ready")

    questions.during(kill)
    forgotten = platform.ask_all(its)
    assert [(a.route[1], a.cached_tokens) for a in forgotten] == [(0, 0)] * len(its)
    spread(platform, "Returned", service.names())
    for body, before in zip(its, forgotten, strict=True):
        (again,) = platform.ask_all([body])
        assert again.route[0] == before.route[0]
        assert min(again.route[1], again.cached_tokens) > 0


def test_a_drained_node_evicts_one_engine_at_a_time_and_cuts_no_stream(
    service: Service, questions: Questions
) -> None:
    service.scale(2)
    kubectl, before = service.kubectl, service.names()

    def drain() -> None:
        flags = ("drain", NODE, f"--pod-selector={service.selector}", "--delete-emptydir-data")
        with ThreadPoolExecutor() as pool:
            drained = pool.submit(kubectl, *flags, "--timeout=150s", timeout_s=160.0)
            first = service.until_going()
            (other,) = before - {f"{service.namespace}/{first}"}
            with pytest.raises(ApiError, match="disruption budget"):
                evict(service, other.partition("/")[2])
            kubectl("uncordon", NODE)
            drained.result()
        service.settled(2)

    questions.during(drain)
    assert not before & service.names()


def evict(service: Service, name: str) -> None:
    """Asks for an eviction as `kubectl drain` does."""
    path = f"/api/v1/namespaces/{service.namespace}/pods/{name}/eviction"
    metadata = f'{{"name": "{name}", "namespace": "{service.namespace}"}}'
    eviction = f'{{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {metadata}}}'
    service.kubectl("create", "--raw", path, "--filename", "-", stdin=eviction)


def test_an_operator_killed_in_the_middle_of_a_drain_changes_no_end(
    platform: Platform, service: Service, questions: Questions
) -> None:
    service.scale(1)
    undisturbed = service.shape()
    service.scale(2)

    def drain() -> None:
        flags = ("scale", "ois", service.name, "--replicas=1")
        service.kubectl(*flags, namespace=service.namespace)
        service.until_going()
        platform.kill("operator")
        service.settled()

    questions.during(drain)
    assert service.shape() == undisturbed


def test_an_operator_killed_in_the_middle_of_rollouts_there_and_back_changes_no_end(
    platform: Platform, service: Service, questions: Questions
) -> None:
    service.scale(1)
    undisturbed, options = service.shape(), service.get()["spec"]["engine"]["options"]
    for most, is_as_before in ((33, False), (options.get("maxNumSeqs"), True)):
        before, engines = service.rollouts(), service.names()

        def roll(most: int | None = most, engines: set[str] = engines) -> None:
            service.patch(engine={"options": {"maxNumSeqs": most}})
            service.until_new(engines)
            platform.kill("operator")
            service.settled()

        questions.during(roll)
        assert service.rollouts() == before + 1
        assert (service.shape() == undisturbed) is is_as_before


def test_a_service_deleted_while_it_loads_goes_and_nothing_else_does(
    platform: Platform, service: Service
) -> None:
    """One waits for its model, one for its engine; the operator is killed meanwhile."""
    service.scale(1)
    kubectl, namespace = service.kubectl, service.namespace
    before, undisturbed = service.processes(), service.shape()
    loading, starting = small("smollm2-cpu"), small("smollm2-cpu")
    loading["metadata"]["name"], starting["metadata"]["name"] = "loading", "starting"
    loading["spec"] |= {
        "model": {"uri": "s3://nowhere/model"},
        "cache": {"volume": {"size": "1Gi"}},
    }
    loading["spec"]["engine"]["env"] += [
        {"name": "AWS_ENDPOINT_URL", "value": "http://127.0.0.1:9"},
        {"name": "AWS_REGION", "value": "nowhere"},
        {"name": "AWS_SKIP_SIGNATURE", "value": "true"},
    ]
    going = [Service(platform, namespace, name) for name in ("loading", "starting")]
    for each, wanted in zip(going, (loading, starting), strict=True):
        kubectl.apply(wanted, namespace=namespace, manager="user")
        each.until(lambda pods: any(p["status"]["phase"] == "Running" for p in pods))
        assert condition(each.get(), "Ready") == "False"
    kubectl("delete", "ois", "loading", "starting", "--wait=false", namespace=namespace)
    platform.kill("operator")
    for each in going:
        each.until(lambda pods: not pods)
        assert kubectl.list(CHILDREN, namespace=namespace, selector=each.selector) == []
        kubectl.until_gone("ois", each.name, namespace=namespace)
    assert service.shape() == undisturbed
    assert service.processes() == before


def test_a_lost_store_fails_no_request(
    platform: Platform, service: Service, questions: Questions
) -> None:
    service.scale(1)
    questions.during(lambda: platform.kill("valkey"))


def test_a_gateway_that_is_replaced_fails_no_request(
    platform: Platform, service: Service, questions: Questions
) -> None:
    service.scale(1)
    questions.during(lambda: platform.restart("gateway"))
