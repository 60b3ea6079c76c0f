"""A real control plane on loopback, with kwok's fake nodes: up in seconds, unprivileged.

etcd, API server, controller manager and scheduler are the real ones; what kubelets do to nodes and
pods is played by kwok (stages.yaml says how to steer it).
"""

from __future__ import annotations

import contextlib

from tests.cluster import components
from tests.cluster.api import ApiError, Object
from tests.cluster.binaries import CONTROL_PLANE, build_all, program
from tests.cluster.components import USERS, Site
from tests.cluster.kubectl import Kubectl
from tests.cluster.own_cluster import READY_S, OwnCluster
from tests.cluster.program import Program
from tests.cluster.record import Record, clear_orphans, new_record
from tests.ports import lasting_port

_ACTING = ("deployments", "statefulsets", "jobs", "pods", "hpa", "pvc")
"""Kinds whose objects make controllers work, or take room of nodes."""


class ControlPlane(OwnCluster):
    """A control plane with two fake nodes, `gpu-node` with 8 GPUs and `cpu-node` with none.

    Args:
        record: of its folder; without one it gets a new folder and ends with this process.
        bound: whether its parts die with the thread that starts them.
    """

    def __init__(self, record: Record | None = None, *, bound: bool = True) -> None:
        build_all(CONTROL_PLANE)
        clear_orphans()
        record = record or new_record("control-plane")
        api, etcd, peer = (lasting_port() for _ in range(3))
        site = Site(
            folder=record.folder,
            host="127.0.0.1",
            api_port=api,
            etcd_port=etcd,
            peer_port=peer,
            users=USERS,
        )
        arguments = {
            "etcd": components.etcd(site),
            "kube-apiserver": components.api_server(site),
            "kube-controller-manager": components.controller_manager(site),
            "kube-scheduler": components.scheduler(site),
            "kwok": components.kwok(site.kubeconfig("kwok")),
        }
        parts = {
            name: Program(name, [program(name), *options], record=record, bound=bound)
            for name, options in arguments.items()
        }
        kubectl = Kubectl(
            program("kubectl"), site.kubeconfig("admin"), cache=site.folder / "kubectl"
        )
        super().__init__(site, record=record, kubectl=kubectl, parts=parts)

    def start(self) -> None:
        """Brings everything up; returns when pods can be made and scheduled."""
        components.prepare(self.site)
        super().start()
        self.kubectl.apply(_storage_class())
        self.add_fake_node("gpu-node", gpus=8, timeout_s=READY_S)
        self.add_fake_node("cpu-node")
        self.record.complete()

    def vacate(self, namespace: str) -> None:
        """Ends what acts in a namespace; it goes with the cluster.

        Its deletion would take fifty requests: of all that tests cause, two fifths were these.
        """
        with contextlib.suppress(ApiError):  # the kind is not there, or not any more
            self.kubectl.api.delete_all("ois", namespace)
        for kind in _ACTING:
            self.kubectl.api.delete_all(kind, namespace)


def _storage_class() -> Object:
    """Returns the class of claims that name none."""
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "fake", "annotations": default},
        "provisioner": "fake.octavo.dev/volume",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
