"""Where the operator puts engines is where gateways look for them: they share no code."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.operator.building import NAMESPACE, service

from octavo.gateway.discovery import Endpoint
from octavo.gateway.kubernetes_objects import EndpointSlice, discovered
from octavo.operator import desired_engine, desired_network, names
from octavo.operator.kinds import Manifest


def slice_of(wanted: Manifest, pod: Manifest) -> EndpointSlice:
    """Returns the slice that Kubernetes makes of a Service and a pod: of the ports that both have.

    That it does so is shown by the tests of discovery, on a real control plane.
    """
    numbers = {
        port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]
    }
    raw = {
        "metadata": {
            "name": f"{wanted['metadata']['name']}-x",
            "namespace": NAMESPACE,
            "labels": {
                **wanted["metadata"]["labels"],
                "kubernetes.io/service-name": wanted["metadata"]["name"],
            },
        },
        "ports": [
            {"name": port["name"], "port": numbers[port["targetPort"]]}
            for port in wanted["spec"]["ports"]
            if port["targetPort"] in numbers
        ],
        "endpoints": [{"addresses": ["10.1.0.1"], "targetRef": {"name": "p", "uid": "u"}}],
    }
    return msgspec.convert(raw, EndpointSlice)


@pytest.mark.parametrize(
    ("engine", "tls_name"),
    [({}, ""), ({"tls": {"secretName": "pair"}}, f"llama-engine.{NAMESPACE}.svc")],
    ids=["plaintext", "tls"],
)
def test_gateways_reach_the_port_on_which_the_engine_listens_in_its_own_way(
    engine: dict[str, Any], tls_name: str
) -> None:
    """Whatever the resource says by now: both kinds of pods are behind one Service."""
    pod = desired_engine.pod_template(service(engine=engine), "image", "", "spiffe://a/b")
    for now in ({}, {"tls": {"secretName": "pair"}}):
        made = desired_network.service(service(engine=now))
        (found,) = discovered([slice_of(made, pod)], []).endpoints
        assert found == Endpoint(
            address=f"10.1.0.1:{names.GRPC_PORT}",
            uid="u",
            pod=f"{NAMESPACE}/p",
            service=f"{NAMESPACE}/llama",
            tls_name=tls_name,
        )
