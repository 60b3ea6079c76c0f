"""Pods as kubelet, scheduler and operator leave them."""

from __future__ import annotations

from typing import Any

from tests.operator.world import START

from octavo.operator import names
from octavo.operator.kinds import Manifest
from octavo.operator.timestamps import to_text


def pod(
    name: str = "llama-engine-1",
    *,
    template: str = "t1",
    ready: bool = False,
    routable: bool = False,
    going: bool = False,
    component: str = names.ENGINE,
    phase: str = "Running",
    conditions: list[Manifest] | None = None,
    containers: list[Manifest] | None = None,
    spec: Manifest | None = None,
) -> Manifest:
    """Returns a pod; `containers` are the statuses of its containers."""
    meta: Manifest = {
        "name": name,
        "uid": f"uid-{name}",
        "labels": names.labels("llama", component),
        "annotations": {names.TEMPLATE: template},
        "creationTimestamp": to_text(START),
    }
    if going:
        meta["deletionTimestamp"] = to_text(START)
    said = list(conditions or [])
    if ready:
        said.append({"type": "ContainersReady", "status": "True"})
    if routable:
        said.append({"type": names.ROUTABLE_GATE, "status": "True"})
    is_ready = ready and routable
    reason = {} if is_ready else {"reason": "ContainersNotReady"}
    said.append({"type": "Ready", "status": str(is_ready), **reason})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec or {"containers": [{"name": "engine"}]},
        "status": {"phase": phase, "conditions": said, "containerStatuses": containers or []},
    }


def unplaced(message: str, *, since: float = START, **more: Any) -> Manifest:
    """Returns a pod without a node."""
    stuck = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": to_text(since),
    }
    return pod(conditions=[stuck], phase="Pending", **more)


def waiting(reason: str, message: str = "", **more: Any) -> Manifest:
    """Returns the status of a container that waits."""
    return {
        "name": "engine",
        "image": "engine:1",
        "ready": False,
        "state": {"waiting": {"reason": reason, "message": message}},
        **more,
    }


def ended(status: int, message: str = "", reason: str = "Error") -> Manifest:
    """Returns the status of a container that ended and will be started again."""
    end = {"exitCode": status, "reason": reason, "message": message}
    return waiting("CrashLoopBackOff", "back-off 10s", lastState={"terminated": end})
