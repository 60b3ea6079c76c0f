"""A cluster that somebody else brought up, which gets fake nodes for the time of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import components
from tests.cluster.binaries import build_all, program
from tests.cluster.kubectl import Kubectl
from tests.cluster.kubernetes import FAKE_NODES, Kubernetes
from tests.cluster.program import Program
from tests.cluster.record import clear_orphans, new_record


def chosen() -> bool:
    """Tells whether the tests shall use such a cluster."""
    return os.environ.get("OCTAVO_TEST_CLUSTER") == "external"


@contextmanager
def external_cluster() -> Iterator[Kubernetes]:
    """Gives the cluster of $KUBECONFIG; kwok plays fake nodes in it unless one does already."""
    build_all(("kwok", "kubectl"))
    kubeconfig = Path(os.environ["KUBECONFIG"]).resolve()
    clear_orphans()
    record = new_record("external")
    kubectl = Kubectl(program("kubectl"), kubeconfig, cache=record.folder / "kubectl")
    cluster = Kubernetes(kubectl)
    command = [program("kwok"), *components.kwok(kubeconfig)]
    kwok = Program("kwok", command, record=record, bound=True)
    nodes = kubectl.list("nodes")
    played = any(FAKE_NODES in node["metadata"].get("annotations", {}) for node in nodes)
    try:
        if not played:
            kwok.start()
        with cluster.fake_node(gpus=8):
            yield cluster
    finally:
        kubectl.api.close()
        kwok.terminate()
        record.undo()
