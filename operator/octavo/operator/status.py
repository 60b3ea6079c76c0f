"""The status of an InferenceService as it is written, and whether it has to be."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.operator import arithmetic, comparison, conditions, names, naming, schema_status
from octavo.operator.conditions import (
    CERTIFICATE,
    MODEL_CACHED,
    NAMED,
    READY,
    ROLLOUT,
    Condition,
)
from octavo.operator.kinds import Manifest
from octavo.operator.observed import Observed, metadata
from octavo.operator.plan import Event, normal, warning
from octavo.operator.situation import Situation
from octavo.operator.spec import Problem

_RATE_STEP = 5
"""Points by which a hit rate has to change to be worth a write."""

_FIELDS = frozenset(schema_status.status()["properties"]) - {"conditions"}

_TOLD = (NAMED, MODEL_CACHED, CERTIFICATE, ROLLOUT, READY)
"""Conditions whose changes are events, in the order in which they are told."""


def status_of(situation: Situation, judged: list[Condition]) -> Manifest:
    """Returns the whole status of a valid resource."""
    service, counts = situation.service, situation.counts
    present = present_of(situation.observed.resource)
    merged = conditions.merge(
        judged, present.get("conditions") or [], service.generation, situation.now
    )
    deployed = (situation.deployment or {}).get("status") or {}
    status: Manifest = {
        "observedGeneration": service.generation,
        "conditions": merged,
        "reason": conditions.find(merged, READY)["reason"],
        "model": naming.first_name(service, situation.observed),
        "url": situation.observed.installation.url,
        "replicas": deployed.get("replicas", 0),
        "selector": names.selector_text(service.name),
        "desired": counts.desired,
        "updated": counts.updated,
        "ready": counts.ready,
        "routable": counts.routable,
        "draining": counts.draining,
        "counts": f"{counts.routable}/{counts.desired}",
        "hitRate": _hit_rate(situation, str(present.get("hitRate", ""))),
        "numericsIDs": arithmetic.ids(situation, present.get("numericsIDs") or []),
        "plan": situation.preview,
    }
    if situation.replicas.memory is not None:
        status["autoscaling"] = situation.replicas.memory.as_status()
        status["servedRevision"] = _served(situation, merged, present)
    return {key: value for key, value in status.items() if value not in (None, "", [])}


def bad_status(
    observed: Observed, problems: list[Problem], now: float
) -> tuple[Manifest, list[Condition]]:
    """Returns the status of a resource that cannot be: what was known before, and what is wrong."""
    present = present_of(observed.resource)
    generation = int(metadata(observed.resource).get("generation", 0))
    wrong = Condition(
        type=READY,
        status="False",
        reason="InvalidSpec",
        message="; ".join(str(problem) for problem in problems),
        is_failure=True,
    )
    others = [c for c in present.get("conditions") or [] if c.get("type") != READY]
    merged = conditions.merge([wrong], present.get("conditions") or [], generation, now)
    status = {"observedGeneration": generation, "reason": wrong.reason}
    return present | status | {"conditions": [*merged, *others]}, [wrong]


def present_of(resource: Manifest) -> Manifest:
    """Returns the status that a resource has."""
    found: Manifest = resource.get("status") or {}
    return found


def is_same(present: Manifest, wanted: Manifest) -> bool:
    """Whether a status need not be written: no field of ours differs or has to go."""
    if any(present.get(field) != wanted.get(field) for field in _FIELDS):
        return False
    wanted_conditions = wanted["conditions"]
    return not comparison.differences(
        {"conditions": present.get("conditions") or []}, {"conditions": wanted_conditions}
    )


def events(present: Manifest, wanted: Manifest, judged: Iterable[Condition]) -> list[Event]:
    """Returns what a change of the status is worth telling."""
    before = present.get("conditions") or []
    found: list[Event] = []
    told = [condition for condition in judged if condition.type in _TOLD]
    for condition in sorted(told, key=lambda condition: _TOLD.index(condition.type)):
        old = conditions.find(before, condition.type)
        is_new = (old.get("status"), old.get("reason")) != (condition.status, condition.reason)
        is_told = condition.reason in [event.reason for event in found]
        if is_new and not is_told:
            merged = conditions.find(wanted["conditions"], condition.type)
            make = warning if condition.is_failure else normal
            found.append(make(condition.reason, str(merged["message"])))
    why = (wanted.get("autoscaling") or {}).get("reason")
    if why and why != (present.get("autoscaling") or {}).get("reason"):
        found.append(normal("Scaled", str(why)))
    return found


def _served(situation: Situation, merged: list[Manifest], present: Manifest) -> object:
    """Returns the hash of the revision that was ready last."""
    is_ready = conditions.find(merged, READY)["status"] == "True"
    return situation.revision.template if is_ready else present.get("servedRevision")


def _hit_rate(situation: Situation, shown: str) -> str:
    """Returns the share of prompt tokens that caches had, as shown unless it is another by now."""
    gateways = situation.observed.gateways
    loads = [
        load
        for report in (gateways.reports if gateways else ())
        for load in report.services
        if load.service == situation.service.full_name
    ]
    prompt = sum(load.prompt_tokens for load in loads)
    if prompt <= 0:
        return shown
    rate = round(100 * sum(load.cached_tokens for load in loads) / prompt)
    before = shown.removesuffix("%")
    if before.isascii() and before.isdigit() and abs(rate - int(before)) < _RATE_STEP:
        return shown
    return f"{rate}%"
