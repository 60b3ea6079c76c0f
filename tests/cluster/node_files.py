"""What the parts of a whole node are told: values only, nothing is started here."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.api import Object
from tests.cluster.components import DNS_ADDRESS, Site

NODE = "node"
POD_RANGE = "10.244.0.0/16"
PAUSE_IMAGE = "octavo.dev/pause:1"
COREDNS_IMAGE = "octavo.dev/coredns:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
VOLUMES = 16

_CONTAINERD = """
version = 2
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""


def write_containerd(site: Site) -> list[str]:
    """Writes containerd's files and returns its arguments."""
    cni = site.folder / "cni"
    cni.mkdir()
    config = site.folder / "containerd.toml"
    config.write_text(_CONTAINERD.format(pause=PAUSE_IMAGE, folder=site.folder), encoding="utf-8")
    subnet = {"subnet": POD_RANGE}
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[subnet]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    network = {"cniVersion": "0.4.0", "name": "octavo", "plugins": [bridge, portmap]}
    _write(cni / "octavo.conflist", network)
    return [f"--config={config}"]


def write_kubelet(site: Site, cgroup: str) -> list[str]:
    """Writes kubelet's files and returns its arguments."""
    (site.folder / "resolv.conf").write_text("", encoding="utf-8")
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": site.host,
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": str(site.folder / "kubelet-client.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "registryPullQPS": 0,
        "resolvConf": str(site.folder / "resolv.conf"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    }
    path = _write(site.folder / "kubelet.json", config)
    return [
        f"--config={path}",
        f"--kubeconfig={site.kubeconfig('kubelet')}",
        f"--hostname-override={NODE}",
        f"--node-ip={site.host}",
    ]


def write_kube_proxy(site: Site) -> list[str]:
    """Writes kube-proxy's file and returns its arguments; it leaves conntrack's limits alone."""
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(site.kubeconfig("kube-proxy"))},
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": NODE,
        "mode": "iptables",
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
    return [f"--config={_write(site.folder / 'kube-proxy.json', config)}"]


def kube_router(site: Site) -> list[str]:
    """Returns the arguments of what enforces network policies, and does nothing else."""
    return [
        f"--kubeconfig={site.kubeconfig('kube-router')}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        f"--hostname-override={NODE}",
        "--iptables-sync-period=60s",
        "--health-port=0",
    ]


def storage(folder: Path) -> list[Object]:
    """Makes folders for volumes and returns the volumes, and the class of claims that name none."""
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    storage_class: Object = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local", "annotations": default},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    return [storage_class, *(_volume(folder, number) for number in range(VOLUMES))]


def _volume(folder: Path, number: int) -> Object:
    path = folder / "volumes" / str(number)
    path.mkdir(parents=True)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"local-{number}"},
        "spec": {
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
            "capacity": {"storage": "1Ti"},
            "local": {"path": str(path)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "local",
        },
    }


def _write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path
