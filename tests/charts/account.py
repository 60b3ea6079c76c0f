"""The accounts of the chart on a real API server: their rights, and what was done with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.charts.rendering import Manifest, render
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes

from octavo.operator import crd

Rights = dict[tuple[str, str], set[str]]
"""Verbs by API group and resource; a subresource is RESOURCE/SUBRESOURCE."""


class Account:
    """The account of a component that serves its own namespace, or more.

    Args:
        component: operator or gateway.
        namespace: where the chart is installed.
        others: namespaces that are served as well.
    """

    def __init__(self, component: str, namespace: str, *others: str) -> None:
        self.name = f"octavo-{component}"
        self.namespace = namespace
        self.served = (namespace, *others)
        self._component = component

    @property
    def roles(self) -> list[Manifest]:
        """The roles that the chart gives it."""
        return self._of_chart("Role")

    @property
    def user(self) -> str:
        """The name by which the API server knows it."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def bring(self, cluster: Kubernetes) -> None:
        """Brings it, its roles, and the definition that they are about."""
        cluster.kubectl.apply(crd.definition(), *self._of_chart("ServiceAccount"))
        self.bring_roles(cluster)

    def bring_roles(self, cluster: Kubernetes) -> None:
        """Brings its roles alone, as after one of its namespaces was made anew."""
        cluster.kubectl.apply(*self._of_chart("Role", "RoleBinding"))

    def kubeconfig(self, cluster: Kubernetes, server: str = "") -> dict[str, Any]:
        """Returns how it reaches the API server, or a stand-in of that."""
        return kubeconfig(cluster, self.namespace, self.name, server)

    def done(self, control_plane: ControlPlane) -> tuple[Rights, list[Any]]:
        """Returns what was done in its name, and what it was refused."""
        used: Rights = {}
        refused = []
        for event in control_plane.audit():
            target = event.get("objectRef")
            if event["user"]["username"] != self.user or not target:
                continue
            names = (target.get("resource", ""), target.get("subresource", ""))
            resource = "/".join(name for name in names if name)
            answer = event.get("responseStatus", {})
            verbs = used.setdefault((target.get("apiGroup", ""), resource), set())
            verbs.add(event["verb"])
            if event["verb"] == "patch" and answer.get("code") == 201:
                # A server-side apply that creates needs that right too.
                verbs.add("create")
            if answer.get("code") == 403:
                refused.append((event["verb"], resource, answer.get("message")))
        return used, refused

    def _of_chart(self, *kinds: str) -> list[Manifest]:
        values = {"rbac": {"clusterScoped": False, "namespaces": [*self.served]}}
        return [
            each
            for each in render(values, namespace=self.namespace)
            if each["kind"] in kinds and each["metadata"]["name"].endswith(f"-{self._component}")
        ]


def kubeconfig(
    cluster: Kubernetes, namespace: str, account: str, server: str = ""
) -> dict[str, Any]:
    """Returns how a ServiceAccount reaches the API server, or a stand-in of that."""
    token = cluster.kubectl("create", "token", account, namespace=namespace).strip()
    whole = json.loads(cluster.kubeconfig.read_text(encoding="utf-8"))
    (reached,) = whole["clusters"]
    if server:
        reached["cluster"] = {"server": server}
    return {**whole, "users": [{"name": whole["users"][0]["name"], "user": {"token": token}}]}


def rights(rules: Iterable[Manifest]) -> Rights:
    """Returns what the rules of a role allow."""
    found: Rights = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found
