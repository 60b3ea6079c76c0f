"""The readiness gate of engines: ready means that requests get there.

A gate opens when every gateway has sent a probe request through, or, where there is no gateway,
when the engine says that its model is loaded. It stays open while the pod lives: that a gateway
restarts is no fault of an engine. Only an engine that a gateway saw fail is shut out. That no
gateway reaches any engine of a service is told, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from octavo.operator import names, pods
from octavo.operator.kinds import Manifest
from octavo.operator.observed import EngineSeen, Gateways, metadata
from octavo.operator.plan import PatchPodCondition
from octavo.operator.timestamps import to_text

UNREACHED_S: Final = 30.0
"""For how long gateways may reach no engine before that is told: longer than they take to be
replaced, or to connect again."""


def gates(
    engines: Iterable[Manifest], gateways: Gateways | None, now: float
) -> list[PatchPodCondition]:
    """Returns the gates that change, by pod.

    Args:
        engines: the pods.
        gateways: None when there is none.
        now: Unix time.
    """
    found = []
    for pod in engines:
        if not pods.is_live(pod):
            continue
        change = _change(pod, gateways)
        if change is not None:
            status, reason, message = change
            condition = {
                "type": names.ROUTABLE_GATE,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": to_text(now),
            }
            meta = metadata(pod)
            found.append(PatchPodCondition(pod=meta["name"], uid=meta["uid"], condition=condition))
    return found


def waits_for(pod: Manifest, gateways: Gateways | None) -> str:
    """Returns why a gate is not open, for people."""
    if gateways is None:
        return "its model is not loaded yet"
    if gateways.silent:
        return f"{gateways.silent} gateways do not answer"
    if not gateways.reports:
        return "no gateway is ready"
    details = [seen.detail or seen.state for seen in _seen(pod, gateways) if not seen.routable]
    return details[0] if details else "not every gateway has found it yet"


def unreached_s(engines: Iterable[Manifest], gateways: Gateways | None) -> float | None:
    """Returns for how long no gateway has reached any of these engines; None: one does.

    Args:
        engines: the live pods of one service.
        gateways: None when there is none, and nobody to ask.
    """
    if gateways is None:
        return None
    is_reached = any(seen.routable for pod in engines for seen in _seen(pod, gateways))
    return None if is_reached else gateways.unreached_s


def _change(pod: Manifest, gateways: Gateways | None) -> tuple[str, str, str] | None:
    is_open = pods.has(pod, names.ROUTABLE_GATE)
    seen = [] if gateways is None else _seen(pod, gateways)
    failed = [engine for engine in seen if engine.state == "failed"]
    if failed and is_open:
        return "False", "EngineFailed", failed[0].detail or "a gateway saw it fail"
    if failed or is_open:
        return None
    if gateways is None:
        is_loaded = pods.has(pod, "ContainersReady")
        return ("True", "NoGateway", "there is no gateway to ask") if is_loaded else None
    told = len(gateways.reports)
    if gateways.silent or not told or sum(engine.routable for engine in seen) < told:
        return None
    return "True", "Routable", "every gateway can send requests to it"


def _seen(pod: Manifest, gateways: Gateways) -> list[EngineSeen]:
    """Returns what the gateways see of a pod, at most one entry a gateway."""
    uid = metadata(pod)["uid"]
    found = []
    for report in gateways.reports:
        of_pod = [engine for engine in report.engines if engine.uid == uid]
        found += of_pod[:1]
    return found
