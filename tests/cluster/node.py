"""A whole node: containerd, kubelet, kube-proxy, CoreDNS and enforced network policies.

All of it lives in a machine of namespaces (machine.py) with one address, which nothing outside can
reach. What shall talk to it runs inside: `node.inside(...)`, and kubectl by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import components, node_files
from tests.cluster.api import Object
from tests.cluster.binaries import NODE, build_all, program
from tests.cluster.builder import Builder
from tests.cluster.components import USERS, Site
from tests.cluster.images import Images
from tests.cluster.kubectl import Kubectl
from tests.cluster.kubernetes import condition, node_is_ready
from tests.cluster.machine import Machine, Result, own_network
from tests.cluster.own_cluster import API_SERVER, READY_S, OwnCluster
from tests.cluster.packages import NODE as PACKAGES
from tests.cluster.packages import ensure
from tests.cluster.places import HERE, cache_folder, claim, say
from tests.cluster.program import Program
from tests.cluster.record import Record, clear_orphans, new_record
from tests.cluster.starvation import starve

ADDRESS = "10.99.0.1"
_NODE_USERS = {
    **USERS,
    "kubelet": (f"system:node:{node_files.NODE}", "system:nodes"),
    "kube-proxy": ("system:kube-proxy", ""),
    "kube-router": ("kube-router", "system:masters"),
}
_LAST = ("kube-proxy", "kube-router")
"""They end when their node is not known yet."""


class Node(OwnCluster):
    """A cluster of one real node.

    Args:
        record: of its folder; without one it gets a new folder and ends with this process.
        bound: whether it dies with the thread that starts it.
    """

    def __init__(self, record: Record | None = None, *, bound: bool = True) -> None:
        ensure(PACKAGES)
        build_all(NODE)
        clear_orphans()
        record = record or new_record("node")
        site = Site(
            folder=record.folder,
            host=ADDRESS,
            api_port=6443,
            etcd_port=2379,
            peer_port=2380,
            users=_NODE_USERS,
        )
        self._kept = claim(cache_folder() / "containerd.lock")
        self.machine = Machine(record, bound=bound, network=True, claims=self._kept)
        kubectl = Kubectl(
            program("kubectl"),
            site.kubeconfig("admin"),
            cache=site.folder / "kubectl",
            before=lambda: self.machine.entering("net"),
            within=self.machine.in_network,
        )
        super().__init__(site, record=record, kubectl=kubectl, parts={})

    def start(self) -> None:
        """Brings everything up; returns when pods can be made and reached."""
        components.prepare(self.site)
        self.machine.start()
        own_network(self.machine, ADDRESS)
        self._keep_images()
        self.parts.update(self._programs())
        self.start_parts("etcd", API_SERVER)
        self._images = Images(self.machine, self.parts["containerd"], self.site.folder)
        self._images.start()
        self.import_program(Path(program("pause")), node_files.PAUSE_IMAGE)
        self.import_program(Path(program("coredns")), node_files.COREDNS_IMAGE)
        self.until_ready()
        self.start_parts("kube-controller-manager", "kube-scheduler", "kubelet")
        self.parts["kubelet"].until(self._has_a_node, READY_S)
        self.start_parts(*_LAST)
        self.kubectl("apply", "--filename", str(HERE / "coredns.yaml"))
        self.kubectl.apply(*node_files.storage(self.site.folder))
        self.kubectl.until(
            lambda d: condition(d, "Available") == "True",
            "deployment",
            "coredns",
            namespace="kube-system",
            timeout_s=READY_S,
        )
        self.record.complete()

    def _keep_images(self) -> None:
        """Lets containerd use what it had in earlier nodes, unless another node does so now."""
        if self._kept is None:
            say("another node has the kept images; this one begins without any")
            return
        kept = cache_folder() / "containerd"
        kept.mkdir(exist_ok=True)
        self.machine.run("mkdir", "/var/lib/containerd")
        self.machine.run("mount", "--bind", str(kept), "/var/lib/containerd")

    def _programs(self) -> dict[str, Program]:
        site, cgroup = self.site, f"octavo-{self.record.folder.name}"
        self.record.cgroup(cgroup)
        commands = {
            "containerd": ["containerd", *node_files.write_containerd(site)],
            "etcd": [program("etcd"), *components.etcd(site)],
            "kube-apiserver": [program("kube-apiserver"), *components.api_server(site)],
            "kube-controller-manager": [
                program("kube-controller-manager"),
                *components.controller_manager(site),
            ],
            "kube-scheduler": [program("kube-scheduler"), *components.scheduler(site)],
            "kubelet": [program("kubelet"), *node_files.write_kubelet(site, cgroup)],
            "kube-proxy": [program("kube-proxy"), *node_files.write_kube_proxy(site)],
            "kube-router": [program("kube-router"), *node_files.kube_router(site)],
        }
        env = {"NODE_NAME": node_files.NODE}
        return {
            name: self.machine.program(name, command, env) for name, command in commands.items()
        }

    def _has_a_node(self) -> bool:
        return any(node_is_ready(node) for node in self.kubectl.list("nodes"))

    def import_program(self, static: Path, name: str) -> None:
        """Makes an image with one static program, which is its entry point."""
        self._images.import_program(static, name)

    def import_image(self, builder: Builder, *names: str) -> list[str]:
        """Takes images over from where they were built; returns those that were not here yet."""
        return self._images.import_image(builder, *names)

    def kill_container(self, pod: Object) -> None:
        """kill -9 of the processes of a pod's only container, which the kubelet starts again."""
        self._images.kill(_container(pod))

    @contextmanager
    def frozen(self, pod: Object) -> Iterator[None]:
        """A time in which no process of a pod's only container moves, and its connections stay."""
        self._images.pause(_container(pod))
        try:
            yield
        finally:
            self._images.resume(_container(pod))

    def starve_container(self, pod: Object) -> None:
        """Takes the memory of a pod's only container, until the kernel ends it for want of some."""
        starve(self._images.cgroup(_container(pod)))

    def inside(self, command: Sequence[str]) -> list[str]:
        """Returns a command that runs another one in the network of the node."""
        return [*self.machine.entering("net"), *command]

    def in_network(self, work: Callable[[], Result]) -> Result:
        """Does something, such as asking a Service, in the network of the node."""
        return self.machine.in_network(work)

    def stop(self) -> None:
        """Ends everything and leaves nothing."""
        self.machine.stop()
        super().stop()


def _container(pod: Object) -> str:
    """Returns the id of a pod's only container."""
    (status,) = pod["status"]["containerStatuses"]
    return str(status["containerID"].removeprefix("containerd://"))
