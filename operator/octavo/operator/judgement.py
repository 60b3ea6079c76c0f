"""What the conditions of an InferenceService say: its state in words, never more than is seen.

Ready is true once all engines that are needed exist in the present revision, no others do, and
gateways can send them requests. It stays true when an idle service has none left, if this very
revision has served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from octavo.operator import (
    arithmetic,
    certificate,
    failures,
    model_state,
    naming,
    pods,
    routable,
    shared_volume,
)
from octavo.operator.conditions import (
    NOT_ROUTABLE,
    READY,
    ROLLOUT,
    ROUTABLE,
    SCALED_TO_ZERO,
    SCHEDULED,
    STOPPED,
    Condition,
    Truth,
    condition,
    of_failure,
)
from octavo.operator.kinds import DEPLOYMENT
from octavo.operator.names import DRY_RUN, engine
from octavo.operator.situation import Situation


def judge(situation: Situation) -> list[Condition]:
    """Returns all conditions, Ready first."""
    rollout, reach = _rollout(situation), _routable(situation)
    named = naming.judge(situation.observed)
    return [
        _ready(situation, rollout, reach),
        situation.model,
        _scheduled(situation),
        rollout,
        reach,
        *([named] if named else []),
        *arithmetic.judge(situation),
        *certificate.judge(situation.service, situation.observed, situation.now),
    ]


def _ready(situation: Situation, rollout: Condition, reach: Condition) -> Condition:
    in_the_way = next(_obstacles(situation), None)
    if in_the_way is not None:
        return in_the_way
    counts = situation.counts
    if counts.desired == 0 and situation.is_rolled_out:
        return _at_zero(situation)
    if situation.is_rolled_out and counts.updated_routable >= situation.replicas.needed:
        if not situation.are_routable:
            return _like(reach)
        return _ready_as("True", "Serving", _how_many_route(situation))
    if DEPLOYMENT in situation.revision.waiting and situation.model.status != "True":
        return _like(situation.model)
    newest = [p for p in situation.engines if pods.template_of(p) == situation.revision.template]
    failure = failures.of_pods(newest, situation.now)
    if failure is not None:
        shared = shared_volume.conflict(situation.service, situation.observed.pods, failure)
        return of_failure(READY, shared or failure)
    refused = _refused_pods(situation)
    if refused is not None and not situation.is_short_of_room:
        return _ready_as("False", "PodsRefused", refused, is_failure=True)
    if rollout.status != "True":
        return _like(rollout)
    return _ready_as("False", "Loading", _how_many_route(situation))


def _obstacles(situation: Situation) -> Iterator[Condition]:
    """Yields what keeps the operator itself from doing what is wanted."""
    growth = model_state.not_grown(situation.service, situation.observed)
    for refusal in situation.observed.refusals:
        if refusal == growth:
            continue
        message = f"{refusal.kind} {refusal.name} was refused: {refusal.message}"
        yield _ready_as("False", "WriteRefused", message, is_failure=True)
    if situation.changes.taken:
        names = ", ".join(situation.changes.taken)
        message = f"these exist already and belong to somebody else: {names}"
        yield _ready_as("False", "NameTaken", message, is_failure=True)
    if situation.changes.is_curtailed:
        message = (
            "oci:// models need image volumes, which this Kubernetes lacks (feature ImageVolume);"
            f" once it has them, delete the Deployment {engine(situation.service.name)}"
        )
        yield _ready_as("False", "NoImageVolumes", message, is_failure=True)
    lack = _lack(situation)
    if lack is not None and situation.deployment is None:
        yield _like(lack)


def _at_zero(situation: Situation) -> Condition:
    if situation.service.spec.autoscaling is None:
        return _ready_as("False", STOPPED, "there are to be no engines: nobody serves")
    if _has_served(situation):
        return _ready_as("True", SCALED_TO_ZERO, "idle: the next request starts an engine")
    which = "the first of this revision"
    if situation.service.spec.rollout.paused and _served(situation):
        which = "of the revision that served before, as long as spec.rollout.paused is set"
    message = f"idle: the next request starts an engine, {which}"
    return _ready_as("Unknown", SCALED_TO_ZERO, message)


def _has_served(situation: Situation) -> bool:
    """Tells whether engines of the present revision have been ready."""
    if served := _served(situation):
        return served == situation.revision.template
    # A status of the version before, which told only of which generation it was.
    before = pods.condition(situation.observed.resource, READY)
    is_same = before.get("observedGeneration") == situation.service.generation
    return before.get("status") == "True" and is_same


def _served(situation: Situation) -> str:
    """Returns the hash of the revision that was ready last; empty when none is known."""
    return str((situation.observed.resource.get("status") or {}).get("servedRevision") or "")


def _rollout(situation: Situation) -> Condition:
    counts, revision = situation.counts, situation.revision
    done = f"{counts.updated} of {counts.desired} engines have the present revision"
    if situation.service.is_dry_run and situation.changes.writes:
        message = f"the annotation {DRY_RUN} holds changes back: see status.plan"
        return condition(ROLLOUT, "False", "DryRun", message)
    if (lack := _lack(situation)) is not None:
        return lack
    if DEPLOYMENT in revision.waiting:
        message = "the engines wait until the model is in the volume"
        return condition(ROLLOUT, "False", "WaitingForModel", message)
    if situation.is_rolled_out:
        return condition(ROLLOUT, "True", "Complete", "no engine has an earlier revision")
    if situation.service.spec.rollout.paused:
        return condition(ROLLOUT, "False", "Paused", f"spec.rollout.paused is set: {done}")
    if situation.is_short_of_room:
        message = f"no room for one engine more, so they are replaced one by one: {done}"
        return condition(ROLLOUT, "False", "NoSurgeRoom", message)
    progress = pods.condition(situation.deployment or {}, "Progressing")
    if situation.is_deployed and progress.get("reason") == "ProgressDeadlineExceeded":
        return condition(ROLLOUT, "False", "Stuck", f"no progress: {done}", is_failure=True)
    return condition(ROLLOUT, "False", "RollingOut", done)


def _scheduled(situation: Situation) -> Condition:
    live = situation.live
    stuck = [found for pod in live if (found := pods.unschedulable(pod))]
    if stuck:
        message = f"{len(stuck)} of {len(live)} engines have no node: {stuck[0].get('message')}"
        return condition(SCHEDULED, "False", "Unschedulable", message, is_failure=True)
    if (refused := _refused_pods(situation)) is not None:
        return condition(SCHEDULED, "False", "PodsRefused", refused, is_failure=True)
    if not live:
        return condition(SCHEDULED, "True", "NoEngines", "there are no engines to place")
    return condition(SCHEDULED, "True", "Placed", "all engines have a node")


def _routable(situation: Situation) -> Condition:
    if situation.are_routable:
        return condition(ROUTABLE, "True", "Routable", _how_many_route(situation))
    if not situation.live:
        return condition(ROUTABLE, "False", "NoEngines", "there are no engines")
    loaded = [pod for pod in situation.live if pods.has(pod, "ContainersReady")]
    if not loaded:
        return condition(ROUTABLE, "False", "Loading", "no engine has loaded its model")
    if (lost := failures.of_pod(loaded[0], situation.now)) is not None:
        return of_failure(ROUTABLE, lost)
    why = routable.waits_for(loaded[0], situation.observed.gateways)
    if situation.counts.routable:  # the gate is open, so this is no beginning
        message = f"no gateway can send requests to an engine: {why}"
        return condition(ROUTABLE, "False", NOT_ROUTABLE, message, is_failure=True)
    return condition(ROUTABLE, "False", NOT_ROUTABLE, why)


def _refused_pods(situation: Situation) -> str | None:
    """Returns why Kubernetes makes no pods, such as a quota; None when it does."""
    failed = pods.condition(situation.deployment or {}, "ReplicaFailure")
    return str(failed.get("message", "")) if failed.get("status") == "True" else None


def _lack(situation: Situation) -> Condition | None:
    """Returns Rollout as it is while values of the pods are not known; None when all are."""
    missing, unread = situation.revision.missing, situation.revision.unread
    if missing:
        message = f"waits for {', '.join(map(str, missing))}"
        return condition(ROLLOUT, "False", "ReferenceMissing", message, is_failure=True)
    if unread:
        why = situation.observed.unread
        message = "; ".join(f"{ref} cannot be read: {why[ref]}" for ref in unread)
        return condition(ROLLOUT, "False", "ReferenceUnread", message, is_failure=True)
    return None


def _how_many_route(situation: Situation) -> str:
    counts = situation.counts
    return f"{counts.routable} of {counts.desired} engines take requests"


def _like(other: Condition) -> Condition:
    return replace(other, type=READY, status="False")


def _ready_as(status: Truth, reason: str, message: str, *, is_failure: bool = False) -> Condition:
    return condition(READY, status, reason, message, is_failure=is_failure)
