"""An autoscaler of Kubernetes scales services that have neither a number nor `autoscaling`."""

from __future__ import annotations

import pytest
from tests.cluster.api import ApiError, Object
from tests.cluster.kubernetes import Kubernetes
from tests.operator.operator_process import OperatorProcess
from tests.operator.test_operator_on_cluster import RESOURCE, is_ready, operator, prepared, service

__all__ = ["operator", "prepared"]

SERVICE = ("serving.octavo.dev/v1alpha1", "InferenceService", "chat")
DEPLOYMENT = ("apps/v1", "Deployment", "plain-engine")


def autoscaler(target: tuple[str, str, str], least: int, most: int) -> Object:
    """One that has no metrics and keeps to its bounds."""
    version, kind, name = target
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": name},
            "minReplicas": least,
            "maxReplicas": most,
        },
    }


def test_a_horizontal_pod_autoscaler_scales_a_service_and_nobody_takes_it_back(
    cluster: Kubernetes, operator: OperatorProcess
) -> None:
    namespace, kubectl = operator.namespace, cluster.kubectl

    def until_serving(name: str, number: int) -> Object:
        return kubectl.until(
            lambda found: is_ready(found) and found["status"]["ready"] == number,
            RESOURCE, name, namespace=namespace, timeout_s=90,
        )  # fmt: skip

    kubectl.apply(service(), service("plain"), namespace=namespace)
    with pytest.raises(ApiError, match=r"the spec replicas field .* does not exist"):
        kubectl("get", RESOURCE, "chat", "--subresource=scale", namespace=namespace)
    kubectl("scale", RESOURCE, "chat", "--replicas=1", namespace=namespace)
    for name in ("chat", "plain"):
        until_serving(name, 1)
    scalers = (autoscaler(SERVICE, 3, 4), autoscaler(DEPLOYMENT, 2, 4))
    kubectl.apply(*scalers, namespace=namespace)
    assert until_serving("chat", 3)["spec"]["replicas"] == 3
    assert "replicas" not in until_serving("plain", 2)["spec"]
    edit = {"env": [{"name": "EDITED", "value": "yes"}]}
    kubectl.apply(service(engine=edit), service("plain", engine=edit), namespace=namespace)
    found = until_serving("chat", 3)
    assert found["spec"]["replicas"] == 3, "the number belongs to the autoscaler"
    until_serving("plain", 2)
