"""A user's own Valkeys: two pods behind one Service, of which one follows the other."""

from __future__ import annotations

import json

import redis
from tests.bounds import EVENTUALLY_S
from tests.charts.rendering import VERSION
from tests.cluster.api import Object
from tests.cluster.kubernetes import condition
from tests.cluster.node import Node
from tests.cluster.program import wait_until

_PORT = 6379
_SERVICE = "store"
"""Also the name of the Secret with the password."""
_PASSWORD = "swordfish"
_LEADS, _FOLLOWS = "store-a", "store-b"
OBJECTS = (_SERVICE, _LEADS, _FOLLOWS)
"""The names of all that is made."""
STORED: Object = {
    "valkey": {"enabled": False},
    "externalRedis": {"url": f"redis://{_SERVICE}:{_PORT}/0", "passwordSecret": {"name": _SERVICE}},
}
"""Values of a release in the same namespace that uses them."""


class Stores:
    """Two Valkeys of our own image.

    Args:
        node: where they run.
        namespace: where they are made.
    """

    def __init__(self, node: Node, namespace: str) -> None:
        self.namespace = namespace
        self._node = node
        self._kubectl = node.kubectl
        self._leader = _LEADS

    def start(self) -> None:
        """Makes them; returns when one follows the other."""
        word = f"--from-literal=password={_PASSWORD}"
        self._kubectl("create", "secret", "generic", _SERVICE, word, namespace=self.namespace)
        self._kubectl.apply(_service(), *map(_pod, (_LEADS, _FOLLOWS)), namespace=self.namespace)
        for name in (_LEADS, _FOLLOWS):
            self._kubectl.until(_is_ready, "pod", name, namespace=self.namespace)
        self._follow(_FOLLOWS, _LEADS)
        wait_until(
            lambda: "'connected'" in self._ask(_FOLLOWS, "ROLE"),
            EVENTUALLY_S,
            lambda: self._ask(_FOLLOWS, "ROLE"),
        )

    def fail_over(self) -> None:
        """Has the follower lead, sends new connections there, and the old leader follow it."""
        old, self._leader = self._leader, _FOLLOWS
        self._ask(self._leader, "REPLICAOF", "NO", "ONE")
        change = json.dumps({"spec": {"selector": {"store": self._leader}}})
        flags = ("patch", "service", _SERVICE, "--patch", change)
        self._kubectl(*flags, namespace=self.namespace)
        self._follow(old, self._leader)

    def leader(self, *words: str) -> str:
        """Returns what the leader answers to a command."""
        return self._ask(self._leader, *words)

    def _follow(self, name: str, leader: str) -> None:
        self._ask(name, "REPLICAOF", self._address(leader), str(_PORT))

    def _address(self, name: str) -> str:
        return str(self._kubectl.get("pod", name, namespace=self.namespace)["status"]["podIP"])

    def _ask(self, name: str, *words: str) -> str:
        address = self._address(name)

        def ask() -> str:
            with redis.Redis(
                address, _PORT, password=_PASSWORD, decode_responses=True, socket_timeout=30.0
            ) as client:
                return str(client.execute_command(*words))

        return self._node.in_network(ask)


def _is_ready(pod: Object) -> bool:
    return condition(pod, "Ready") == "True"


def _service() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _SERVICE},
        "spec": {"selector": {"store": _LEADS}, "ports": [{"port": _PORT}]},
    }


def _pod(name: str) -> Object:
    words = {"requirepass": _PASSWORD, "primaryauth": _PASSWORD, "dir": "/tmp", "save": ""}
    words["repl-diskless-sync-delay"] = "0"
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"store": name}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "main",
                    "image": f"octavo/valkey:{VERSION}",
                    "imagePullPolicy": "Never",
                    "args": [part for key, value in words.items() for part in (f"--{key}", value)],
                    "readinessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 1},
                    "securityContext": security,
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
