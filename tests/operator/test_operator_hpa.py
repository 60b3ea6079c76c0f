"""An autoscaler of Kubernetes scales a service by its scale subresource; the operator follows."""

from __future__ import annotations

from tests.cluster.kubectl import Object
from tests.cluster.kubernetes import Kubernetes
from tests.operator.operator_process import OperatorProcess
from tests.operator.test_operator_on_cluster import RESOURCE, is_ready, operator, prepared, service

__all__ = ["operator", "prepared"]


def autoscaler(least: int, most: int) -> Object:
    """One that has no metrics and keeps to its bounds."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "chat"},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "serving.octavo.dev/v1alpha1",
                "kind": "InferenceService",
                "name": "chat",
            },
            "minReplicas": least,
            "maxReplicas": most,
        },
    }


def test_a_horizontal_pod_autoscaler_scales_a_service_and_nobody_takes_it_back(
    cluster: Kubernetes, operator: OperatorProcess
) -> None:
    namespace, kubectl = operator.namespace, cluster.kubectl

    def until_serving(number: int) -> Object:
        return kubectl.until(
            lambda found: is_ready(found) and found["status"]["ready"] == number,
            RESOURCE, "chat", namespace=namespace, timeout_s=90,
        )  # fmt: skip

    kubectl.apply(service(replicas=1), namespace=namespace)
    until_serving(1)
    kubectl.apply(autoscaler(3, 4), namespace=namespace)
    assert until_serving(3)["spec"]["replicas"] == 3
    edited = service(engine={"env": [{"name": "EDITED", "value": "yes"}]})
    kubectl.apply(edited, namespace=namespace)
    assert until_serving(3)["spec"]["replicas"] == 3, "the number belongs to the autoscaler"
