"""An operator of several namespaces on a real control plane, one of which is deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.kubernetes import Kubernetes
from tests.operator.operator_process import OperatorProcess, account
from tests.operator.test_operator_on_cluster import RESOURCE, is_ready, service

FLAGS = ("--resync-s=2",)


@pytest.fixture
def other(cluster: Kubernetes, namespace: str) -> Iterator[str]:
    """A namespace that the operator of `namespace` serves as well, until a test deletes it."""
    with cluster.namespace() as name:
        account(namespace, name).bring(cluster)
        yield name


def become_ready(cluster: Kubernetes, name: str, namespace: str) -> None:
    cluster.kubectl.apply(service(name), namespace=namespace)
    cluster.kubectl.until(is_ready, RESOURCE, name, namespace=namespace, timeout_s=90)


def told(operator: OperatorProcess, event: str) -> list[str]:
    return [e["namespace"] for e in operator.events if e["event"] == event]


def test_a_namespace_that_is_deleted_holds_up_no_other(
    cluster: Kubernetes, namespace: str, other: str
) -> None:
    with OperatorProcess(cluster, namespace, *FLAGS, others=(other,)) as operator:
        become_ready(cluster, "chat", other)
        become_ready(cluster, "first", namespace)
        cluster.delete_namespace(other)
        operator.until(lambda: told(operator, "namespace_refused") == [other], "told of it", 60)
        assert operator.metric("namespace_open") == 1
        become_ready(cluster, "second", namespace)
        # Told once, listed and watched on without it.
        operator.until(lambda: operator.metric("service_ready") == 2, "all is known", 60)
        assert told(operator, "namespace_refused") == [other]
        assert operator.metric("watch_restarts_total") <= 1
        # Somebody brings both back: it is served again, and watched.
        cluster.kubectl("create", "namespace", other)
        account(namespace, other).bring_roles(cluster)
        operator.until(lambda: told(operator, "namespace_is_back") == [other], "is back", 60)
        become_ready(cluster, "chat", other)


def test_a_namespace_that_was_deleted_before_the_start_holds_up_no_other(
    cluster: Kubernetes, namespace: str, other: str
) -> None:
    cluster.delete_namespace(other)
    with OperatorProcess(cluster, namespace, *FLAGS, others=(other,)) as operator:
        assert told(operator, "namespace_refused") == [other]
        become_ready(cluster, "chat", namespace)
        assert [e for e in operator.events if e["event"] == "watching_failed"] == []
