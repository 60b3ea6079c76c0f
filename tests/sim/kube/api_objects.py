"""What an API server does to an object between a request and the store."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.sim.kube.api_kinds import WITH_STATUS

from octavo.operator.cluster import Labels
from octavo.operator.kinds import DEPLOYMENT, POD, Kind, Manifest

OF_THE_SERVER = (
    "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "managedFields", "name", "namespace", "selfLink",
)  # fmt: skip
"""Fields of metadata that no request writes."""


def matches(manifest: Manifest, labels: Labels) -> bool:
    if not labels:
        return True
    has = manifest["metadata"].get("labels") or {}
    return all(k in has and wanted in (None, has[k]) for k, wanted in labels.items())


def unmanaged(manifest: Manifest) -> Manifest:
    """Returns an object without managedFields, which are no field of anybody."""
    if not manifest:
        return manifest
    metadata = {k: v for k, v in manifest["metadata"].items() if k != "managedFields"}
    return manifest | {"metadata": metadata}


def within(kind: Kind, config: Manifest, subresource: str) -> Manifest:
    """Returns what of an applied object counts: the status, or all but the status."""
    if kind not in WITH_STATUS:
        return config
    is_status = subresource == "status"
    parts = ("apiVersion", "kind", "metadata")
    return {k: v for k, v in config.items() if k in parts or (k == "status") is is_status}


def only(kind: Kind, old: Manifest, new: Manifest, subresource: str) -> Manifest:
    """Returns an object in which only what a request may write is new."""
    if subresource == "status":
        changed = {"status": new["status"]} if "status" in new else {}
        return {name: value for name, value in old.items() if name != "status"} | changed
    ours = {k: v for k, v in old.get("metadata", {}).items() if k in OF_THE_SERVER}
    given = {
        k: v
        for k, v in new["metadata"].items()
        if k not in OF_THE_SERVER or (not old and k in ("name", "namespace"))
    }
    result = new | {"metadata": ours | given}
    if kind in WITH_STATUS:
        result.pop("status", None)
        result |= {"status": old["status"]} if "status" in old else {}
    return result


def json_merged(old: Any, change: Any) -> Any:
    """Returns a JSON merge patch's result: null removes, lists are replaced."""
    if not isinstance(change, dict):
        return change
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = json_merged(result.get(name), value)
    return result


def identity(kind: Kind, manifest: Manifest) -> Any:
    """Returns what a generation is about."""
    annotations = manifest and kind == DEPLOYMENT and manifest["metadata"].get("annotations")
    parts = {k: v for k, v in manifest.items() if k not in ("metadata", "status")}
    return parts, annotations or {}


def grace_s(kind: Kind, manifest: Manifest) -> int:
    """Returns how long an object stays after it was told to go."""
    spec, status = manifest.get("spec", {}), manifest.get("status", {})
    has_ended = status.get("phase") in ("Failed", "Succeeded")
    if kind != POD or not spec.get("nodeName") or has_ended:
        return 0
    return int(spec["terminationGracePeriodSeconds"])


def arrived(manifest: Manifest) -> Manifest:
    """Returns an object as it arrives: through JSON."""
    found: Manifest = msgspec.json.decode(msgspec.json.encode(manifest))
    return found
