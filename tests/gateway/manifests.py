"""What a gateway finds in a cluster, as the operator would have made it."""

from __future__ import annotations

from tests.cluster.api import Object
from tests.cluster.manifests import deployment

LABEL = "serving.octavo.dev/service"
COMPONENT = "app.kubernetes.io/component"


def inference_service(name: str, **spec: object) -> Object:
    """Returns a service; of a model that is never loaded."""
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "file:///models/tiny", "servedNames": ["tiny"]}, **spec},
    }


def engine_service(name: str) -> Object:
    """Returns the headless Service of its engines."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{name}-engine", "labels": {LABEL: name}},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: name, COMPONENT: "engine"},
            "ports": [
                {"name": name, "port": port, "targetPort": name}
                for name, port in (("grpc", 50051), ("grpcs", 50052), ("status", 9091))
            ],
        },
    }


def engine_deployment(
    name: str, replicas: int, *, behaviour: str = "run", port: str = "grpc"
) -> Object:
    """Returns engines that only kwok plays; the name of their port says what they speak."""
    made = deployment(f"{name}-engine", replicas)
    labels = {LABEL: name, COMPONENT: "engine"}
    made["spec"]["selector"] = {"matchLabels": labels}
    made["spec"]["template"]["metadata"] = {
        "labels": labels,
        "annotations": {
            "fake.octavo.dev/behaviour": behaviour,
            "fake.octavo.dev/end-after": "2s",
        },
    }
    ports = [{"name": port, "containerPort": 50051}, {"name": "status", "containerPort": 9091}]
    made["spec"]["template"]["spec"]["containers"][0]["ports"] = ports
    return made


def endpoint_slice(service: str, port: int, *, uid: str, terminating: bool = False) -> Object:
    """Returns where a process of this machine is: loopback, which is taken as a name only."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{service}-{port}", "labels": {LABEL: service}},
        "addressType": "FQDN",
        "ports": [{"name": "grpc", "port": port}],
        "endpoints": [
            {
                "addresses": ["127.0.0.1"],
                "conditions": {"ready": False, "serving": True, "terminating": terminating},
                "targetRef": {"kind": "Pod", "name": f"{service}-pod-{uid}", "uid": uid},
            }
        ],
    }
