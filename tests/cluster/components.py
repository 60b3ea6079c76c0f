"""What the parts of a control plane are told: values only, nothing is started here."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.certificates import private_key, self_signed
from tests.cluster.places import HERE

SERVICE_RANGE = "10.96.0.0/16"
DNS_ADDRESS = "10.96.0.10"
_FIRST_SERVICE = "10.96.0.1"

USERS = {
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kwok": ("kwok", "system:masters"),
}
"""Who logs in by a token: the user and its group as the API server sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a control plane lives.

    Attributes:
        folder: its files.
        host: the address on which it listens and is reached.
        api_port: of the API server.
        etcd_port: of etcd's clients.
        peer_port: of etcd's peers, of which there are none.
        users: who logs in by a token.
    """

    folder: Path
    host: str
    api_port: int
    etcd_port: int
    peer_port: int
    users: dict[str, tuple[str, str]]

    @property
    def url(self) -> str:
        """Of the API server."""
        return f"https://{self.host}:{self.api_port}"

    @property
    def audit_log(self) -> Path:
        """One JSON object for each stage of a request."""
        return self.folder / "audit.log"

    def kubeconfig(self, user: str) -> Path:
        """Returns how a user reaches the API server."""
        return self.folder / f"{user}.kubeconfig"


def prepare(site: Site) -> None:
    """Writes certificates, keys, tokens and kubeconfigs."""
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    hosts = (*(f"DNS:{name}" for name in names), f"IP:{site.host}", f"IP:{_FIRST_SERVICE}")
    self_signed(site.folder, "apiserver", hosts=hosts)
    self_signed(site.folder, "kubelet-client", group="system:masters")
    private_key(site.folder, "service-accounts")
    rows = []
    for name, (user, group) in site.users.items():
        token = secrets.token_hex(16)
        rows.append(f'{token},{user},{name},"{group}"')
        kubeconfig = json.dumps(_kubeconfig(site, name, token), indent=1)
        site.kubeconfig(name).write_text(kubeconfig, encoding="utf-8")
        site.kubeconfig(name).chmod(0o600)
    tokens = site.folder / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text("\n".join(rows) + "\n", encoding="utf-8")


def _kubeconfig(site: Site, name: str, token: str) -> dict[str, object]:
    authority = str(site.folder / "apiserver.crt")
    cluster = {"server": site.url, "certificate-authority": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "octavo", "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "octavo", "context": {"cluster": "octavo", "user": name}}],
        "current-context": "octavo",
    }


def etcd(site: Site) -> list[str]:
    """Returns etcd's arguments; it need not survive the machine, so it never waits for a disk."""
    clients, peers = (f"http://{site.host}:{port}" for port in (site.etcd_port, site.peer_port))
    return [
        f"--data-dir={site.folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(site: Site) -> list[str]:
    """Returns the API server's arguments."""
    folder = site.folder
    loopback = site.host.startswith("127.")
    return [
        f"--etcd-servers=http://{site.host}:{site.etcd_port}",
        f"--bind-address={site.host}",
        f"--advertise-address={site.host}",
        f"--secure-port={site.api_port}",
        # Nothing outside of a loopback address could use the endpoint of the Service `kubernetes`.
        *(["--endpoint-reconciler-type=none"] if loopback else []),
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--tls-cert-file={folder / 'apiserver.crt'}",
        f"--tls-private-key-file={folder / 'apiserver.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={folder / 'kubelet-client.crt'}",
        f"--kubelet-client-key={folder / 'kubelet-client.key'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'service-accounts.key'}",
        f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={HERE / 'audit.yaml'}",
        f"--audit-log-path={site.audit_log}",
        "--audit-log-maxsize=2000",
        "--profiling=false",
    ]


def controller_manager(site: Site) -> list[str]:
    """Returns the controller manager's arguments: quick to act, quick to miss a node."""
    return [
        f"--kubeconfig={site.kubeconfig('kube-controller-manager')}",
        f"--root-ca-file={site.folder / 'apiserver.crt'}",
        f"--service-account-private-key-file={site.folder / 'service-accounts.key'}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--concurrent-namespace-syncs=20",
        "--concurrent-gc-syncs=20",
        "--node-monitor-period=1s",
        "--node-monitor-grace-period=12s",
        "--horizontal-pod-autoscaler-sync-period=1s",
        "--profiling=false",
    ]


def scheduler(site: Site) -> list[str]:
    """Returns the scheduler's arguments."""
    return [
        f"--kubeconfig={site.kubeconfig('kube-scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--profiling=false",
    ]


def kwok(kubeconfig: Path) -> list[str]:
    """Returns kwok's arguments: it plays the nodes that say they are fake."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--config={HERE / 'stages.yaml'}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=fake.octavo.dev/node=true",
        "--node-lease-duration-seconds=0",
        "--cidr=10.128.0.0/12",
        "--node-ip=10.127.0.1",
    ]
