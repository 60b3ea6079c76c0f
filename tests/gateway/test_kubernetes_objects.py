from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.gateway.discovery import Endpoint, Service
from octavo.gateway.kubernetes_objects import EndpointSlice, InferenceService, discovered


def endpoint(pod: str, *addresses: str, uid: str = "", **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": list(addresses or ("10.1.0.1",)),
        "conditions": {"ready": True, **conditions},
        "targetRef": {"kind": "Pod", "namespace": "a", "name": pod, "uid": uid or f"uid-{pod}"},
        "nodeName": "n",
    }


def part(name: str, *endpoints: dict[str, Any], **more: Any) -> EndpointSlice:
    raw = {
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": name,
            "namespace": "a",
            "resourceVersion": "7",
            "labels": {"serving.octavo.dev/service": "s", "kubernetes.io/service-name": "s-engine"},
        },
        "addressType": "IPv4",
        "ports": [
            {"name": "status", "port": 9091, "protocol": "TCP"},
            {"name": "grpc", "port": 50051, "protocol": "TCP"},
        ],
        "endpoints": list(endpoints),
    }
    return msgspec.convert({**raw, **more}, EndpointSlice)


def service(name: str, spec: dict[str, Any], **metadata: Any) -> InferenceService:
    raw = {
        "metadata": {
            "name": name,
            "namespace": "a",
            "creationTimestamp": "2026-11-30T02:00:00Z",
            **metadata,
        },
        "spec": {"model": {"uri": "hf://org/m"}, **spec},
        "status": {"conditions": []},
    }
    return msgspec.convert(raw, InferenceService)


def endpoints(*parts: EndpointSlice) -> list[Endpoint]:
    return list(discovered(parts, []).endpoints)


def test_an_endpoint_is_a_pod_and_its_port() -> None:
    found = endpoints(part("x", endpoint("p", terminating=False), endpoint("q", "10.1.0.2")))
    assert found == [
        Endpoint(address="10.1.0.1:50051", uid="uid-p", pod="a/p", service="a/s"),
        Endpoint(address="10.1.0.2:50051", uid="uid-q", pod="a/q", service="a/s"),
    ]


def test_whether_it_is_ready_does_not_matter_but_whether_it_is_terminating() -> None:
    found = endpoints(
        part(
            "x",
            endpoint("p", ready=False, serving=False),
            endpoint("q", "10.1.0.2", serving=True, terminating=True),
        )
    )
    assert [e.terminating for e in found] == [False, True]


def test_a_pod_is_one_engine_in_however_many_slices_and_families() -> None:
    four, six = endpoint("p"), endpoint("p", "fd00::1")
    found = endpoints(part("b", six), part("a", four), part("c", four))
    assert [e.address for e in found] == ["10.1.0.1:50051"]
    assert [e.address for e in endpoints(part("b", six))] == ["[fd00::1]:50051"]


@pytest.mark.parametrize(
    "made",
    [
        part("x", ports=[{"name": "status", "port": 9091}]),
        part("x", endpoint("p"), ports=None),
        part("x", endpoint("p"), metadata={"name": "x", "namespace": "a", "labels": {}}),
        part("x", endpoints=None),
        part("x", {"addresses": [], "conditions": {}}),
    ],
    ids=["no grpc port", "no ports", "no label", "no endpoints", "no address"],
)
def test_what_is_no_engine_is_left_out(made: EndpointSlice) -> None:
    assert endpoints(made) == []


def test_a_pod_has_tls_by_the_name_of_its_port_and_the_certificate_of_its_service() -> None:
    plain = part("x", endpoint("p"))
    secure = part("y", endpoint("q", "10.1.0.2"), ports=[{"name": "grpcs", "port": 50051}])
    both = part(
        "z", endpoint("r"), ports=[{"name": "grpc", "port": 1}, {"name": "grpcs", "port": 2}]
    )
    found = {e.pod: (e.address, e.tls_name) for e in endpoints(plain, secure, both)}
    assert found == {
        "a/p": ("10.1.0.1:50051", ""),
        "a/q": ("10.1.0.2:50051", "s-engine.a.svc"),
        "a/r": ("10.1.0.1:2", "s-engine.a.svc"),
    }


def test_an_endpoint_by_hand_has_no_pod() -> None:
    [found] = endpoints(part("x", {"addresses": ["127.0.0.1"]}))
    assert (found.uid, found.pod, found.name) == ("", "", "127.0.0.1:50051")


def test_a_service_has_its_names_or_is_called_as_it_is() -> None:
    found = discovered(
        [],
        [
            service("s", {"model": {"servedNames": ["m", "n", "m"]}}),
            service("r", {}, creationTimestamp="nonsense"),
            service("gone", {}, deletionTimestamp="2026-11-30T02:00:00Z"),
        ],
    )
    assert found.services == (
        Service(id="a/r", names=("r",), created_unix_s=0),
        Service(id="a/s", names=("m", "n"), created_unix_s=1_795_996_800 + 7200),
    )


@pytest.mark.parametrize(
    ("bare_names", "may_be_bare"), [(["*"], True), (["b", "a"], True), (["b"], False), ([], False)]
)
def test_namespaces_have_bare_names_as_the_settings_say(
    bare_names: list[str], may_be_bare: bool
) -> None:
    [found] = discovered([], [service("s", {})], bare_names).services or ()
    assert found.may_be_bare is may_be_bare


@pytest.mark.parametrize(
    ("spec", "may_come"),
    [
        ({}, True),
        ({"replicas": 2}, True),
        ({"replicas": 0}, False),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 3}}, True),
        ({"replicas": 0, "autoscaling": {"maxReplicas": 3}}, True),
    ],
)
def test_a_service_that_somebody_switched_off_is_not_waited_for(
    spec: dict[str, Any], may_come: bool
) -> None:
    [found] = discovered([], [service("s", spec)]).services or ()
    assert found.may_come is may_come


def test_the_order_of_what_is_listed_changes_nothing() -> None:
    slices = [part("x", endpoint("p")), part("y", endpoint("q", "10.1.0.2"))]
    services = [service("s", {}), service("r", {})]
    assert discovered(slices, services) == discovered(slices[::-1], services[::-1])
