"""Clusters for tests: imported by the suite's conftest, so that one serves the whole run.

`OCTAVO_TEST_CLUSTER=external` runs the same tests against the cluster of $KUBECONFIG, to which fake
nodes are added; tests that take a control plane apart are then skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster import external
from tests.cluster.binaries import CONTROL_PLANE, NODE, build_all
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes
from tests.cluster.node import Node

_NEEDS = {"cluster": CONTROL_PLANE, "node": NODE}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what the chosen tests need before the first one's time begins."""
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if not session.config.option.collectonly:
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            for name in used & _NEEDS.keys():
                build_all(_NEEDS[name])


@pytest.fixture(scope="session")
def cluster() -> Iterator[Kubernetes]:
    """A cluster with a fake node of 8 GPUs, up for the whole run."""
    with external.external_cluster() if external.chosen() else ControlPlane() as running:
        yield running


@pytest.fixture(scope="session")
def control_plane(cluster: Kubernetes) -> ControlPlane:
    """The same, for tests that kill its parts or read its audit log."""
    if not isinstance(cluster, ControlPlane):
        pytest.skip("needs a control plane of our own")
    return cluster


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[str]:
    """A new namespace of the cluster."""
    with cluster.namespace() as name:
        yield name


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A whole node, up for the whole run."""
    with Node() as running:
        yield running
