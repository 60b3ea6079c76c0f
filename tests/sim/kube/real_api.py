"""A real API server with the interface of `ApiModel`, as far as the conformance tests need it."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import httpx
import yaml
from tests.sim.kube.api_model import Change

from octavo.operator.cluster import (
    NO_LABELS,
    ClusterError,
    ConflictError,
    ExpiredError,
    Key,
    Labels,
    Listing,
    MissingError,
    RefusedError,
    UnavailableError,
    key_of,
)
from octavo.operator.kinds import Kind, Manifest

_ERRORS = {404: MissingError, 409: ConflictError, 410: ExpiredError, 429: UnavailableError}
Changes = list[Change]


class RealApi:
    """Requests as they are, one at a time.

    Args:
        kubeconfig: with a token.
    """

    def __init__(self, kubeconfig: Path) -> None:
        found = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
        self._client = httpx.Client(
            base_url=cluster["server"],
            headers={"Authorization": f"Bearer {user['token']}"},
            verify=ssl.create_default_context(cafile=cluster["certificate-authority"]),
            trust_env=False,
        )

    def close(self) -> None:
        self._client.close()

    def get(self, kind: Kind, key: Key) -> Manifest | None:
        try:
            return self._send("GET", _path(kind, key))
        except MissingError:
            return None

    def list(
        self, kind: Kind, namespace: str | None = None, *, labels: Labels = NO_LABELS
    ) -> Listing:
        selector = ",".join(k if v is None else f"{k}={v}" for k, v in labels.items())
        path = _path(kind, Key(namespace or "", ""))
        found = self._send("GET", path, params={"labelSelector": selector})
        return Listing(items=found["items"], resource_version=found["metadata"]["resourceVersion"])

    def apply(
        self,
        kind: Kind,
        manifest: Manifest,
        *,
        manager: str,
        subresource: str = "",
        force: bool = True,
    ) -> Manifest:
        path = _path(kind, key_of(manifest), subresource)
        params = {"fieldManager": manager, "force": str(force).lower()}
        return self._send("PATCH", path, manifest, "apply-patch+yaml", params)

    def patch(
        self,
        kind: Kind,
        key: Key,
        change: Manifest,
        *,
        manager: str,
        subresource: str = "",
        uid: str = "",
    ) -> Manifest:
        if uid:
            change = change | {"metadata": change.get("metadata", {}) | {"uid": uid}}
        path = _path(kind, key, subresource)
        return self._send("PATCH", path, change, "merge-patch+json", {"fieldManager": manager})

    def create(self, kind: Kind, manifest: Manifest, *, manager: str) -> Manifest:
        path = _path(kind, Key(manifest["metadata"]["namespace"], ""))
        return self._send("POST", path, manifest, params={"fieldManager": manager})

    def delete(
        self,
        kind: Kind,
        key: Key,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_s: int | None = None,
    ) -> None:
        wanted = {"uid": uid, "resourceVersion": resource_version}
        options: Manifest = {
            "propagationPolicy": "Background",
            "preconditions": {name: value for name, value in wanted.items() if value},
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        self._send("DELETE", _path(kind, key), options)

    def remove(self, kind: Kind, key: Key) -> None:
        self.delete(kind, key, grace_s=0)

    def changes(self, kind: Kind, namespace: str, since: int, until: int) -> Changes:
        """Watches until a version was told, at most five seconds."""
        params = {"watch": "1", "resourceVersion": str(since), "timeoutSeconds": "5"}
        found: Changes = []
        with self._client.stream("GET", _path(kind, Key(namespace, "")), params=params) as response:
            for line in response.iter_lines():
                event = json.loads(line)
                manifest = event["object"]
                version = int(manifest["metadata"]["resourceVersion"])
                found.append(Change(version, event["type"], kind, manifest))
                if version >= until:
                    break
        return found

    def _send(
        self,
        method: str,
        path: str,
        body: Manifest | None = None,
        patch: str = "json",
        params: dict[str, str] | None = None,
    ) -> Manifest:
        response = self._client.request(
            method,
            path,
            params=params,
            content=json.dumps(body) if body is not None else None,
            headers={"Content-Type": f"application/{patch}"},
        )
        found: dict[str, Any] = response.json()
        if response.is_success:
            return found
        status = response.status_code
        error: type[ClusterError] = _ERRORS.get(
            status, RefusedError if status < 500 else UnavailableError
        )
        raise error(f"{status} {found['message']}")


def _path(kind: Kind, key: Key, subresource: str = "") -> str:
    root = f"apis/{kind.api_version}" if kind.group else f"api/{kind.api_version}"
    where = f"/namespaces/{key.namespace}" if key.namespace else ""
    parts = [f"/{root}{where}/{kind.plural}", key.name, subresource]
    return "/".join(part for part in parts if part)
