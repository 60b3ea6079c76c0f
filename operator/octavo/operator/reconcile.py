"""The whole decision about one InferenceService: observed → plan, a pure function.

Level-based: it looks at what is, not at what happened, so a lost event or an operator that ended
between two writes changes nothing about where it leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.operator import (
    counts,
    desired,
    dry_run,
    judgement,
    kept_models,
    model_state,
    names,
    pods,
    replicas,
    rollout,
    routable,
    status,
    writes,
)
from octavo.operator.conditions import Condition
from octavo.operator.desired import Circumstances
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import DEPLOYMENT, VOLUME_CLAIM, Manifest
from octavo.operator.observed import Observed, is_controlled_by, metadata
from octavo.operator.plan import Apply, Delete, PatchPodCondition, Plan, Scale
from octavo.operator.replicas import Replicas
from octavo.operator.revision import Revision, revision
from octavo.operator.situation import Situation
from octavo.operator.spec import InferenceService, parse

UNSETTLED_S = 30.0
"""Between two looks at a service that is not ready, whose pods may tell more by being older."""


def reconcile(observed: Observed, now: float) -> Plan:
    """Returns what is to be written for one InferenceService.

    Carried out and observed again, the plan is empty unless something else has changed. Never
    raises for what a resource says: a bad one gets a condition, and its children stay as they are.

    Args:
        observed: the InferenceService and all that belongs to it.
        now: Unix time in seconds: compared with and written as the time stamps of Kubernetes.
    """
    if metadata(observed.resource).get("deletionTimestamp"):
        return Plan()  # what it owns goes with it
    engines = pods.of_component(observed.pods, names.ENGINE)
    # Of a bad resource, too: its engines serve on, and one that is lost is started again.
    gates = routable.gates(engines, observed.gateways, now)
    service = parse(observed.resource)
    if isinstance(service, list):
        plan = Plan(writes=tuple(gates))
        return _with_status(plan, observed, *status.bad_status(observed, service, now))
    return _reconciled(service, observed, engines, gates, now)


def _reconciled(
    service: InferenceService,
    observed: Observed,
    engines: list[Manifest],
    gates: list[PatchPodCondition],
    now: float,
) -> Plan:
    deployment = _deployment(service, observed)
    model = model_state.judge(service, observed, now)
    target = revision(service, observed, deployment, model)
    number = replicas.decide(service, observed, deployment, now)
    replacing = rollout.decide(service.spec.rollout, deployment, engines, target.template, now)
    children = desired.children(
        service, _circumstances(service, observed, model, target, replacing.strategy, number)
    )
    guarded = frozenset({DEPLOYMENT}) if number.is_borrowed else frozenset()
    changes = writes.changes(observed, children, waiting=target.waiting, guarded=guarded)
    preview = None
    if service.is_dry_run:
        preview = dry_run.preview(
            changes.paths,
            deployment=deployment,
            wanted=next(c for c in children if c["kind"] == DEPLOYMENT.name),
            replicas=number.number,
            strategy=replacing.strategy,
        )
    situation = Situation(
        service=service,
        observed=observed,
        deployment=deployment,
        engines=tuple(engines),
        model=model,
        revision=target,
        replicas=number,
        counts=counts.count(observed.pods, target.template, number.number),
        changes=changes,
        is_short_of_room=replacing.is_short_of_room,
        preview=preview,
        now=now,
    )
    times = [replacing.look_again_s, number.look_again_s]
    return _plan(situation, gates, [time for time in times if time is not None])


def _plan(situation: Situation, gates: list[PatchPodCondition], times: list[float]) -> Plan:
    judged = judgement.judge(situation)
    wanted = status.status_of(situation, judged)
    if judged[0].status != "True":
        times = [*times, UNSETTLED_S]
    elif situation.counts.routable and (rest_s := situation.told_unreached_in_s):
        times = [*times, rest_s]
    plan = Plan(writes=(*gates, *_writes(situation)), requeue_s=min(times, default=None))
    return _with_status(plan, situation.observed, wanted, judged)


def _writes(situation: Situation) -> Sequence[Apply | Scale | Delete]:
    """Returns what is written now: in a dry run the number of engines at most."""
    if situation.service.is_dry_run:
        return writes.scaling(situation.deployment, situation.replicas.scaled)
    return situation.changes.writes


def _with_status(plan: Plan, observed: Observed, wanted: Manifest, judged: list[Condition]) -> Plan:
    present = status.present_of(observed.resource)
    if status.is_same(present, wanted):
        return plan
    told = tuple(status.events(present, wanted, judged))
    return replace(plan, status=wanted, events=told)


def _circumstances(
    service: InferenceService,
    observed: Observed,
    model: Condition,
    target: Revision,
    strategy: Strategy,
    number: Replicas,
) -> Circumstances:
    claim = observed.child(VOLUME_CLAIM, names.models(service.name))
    return Circumstances(
        installation=observed.installation,
        references=target.references,
        kinds=observed.kinds,
        image=target.image,
        strategy=strategy,
        kept=kept_models.kept(service, observed, model),
        claim=str(metadata(claim or {}).get("uid", "")),
        replicas=number.applied,
        is_paused=rollout.is_paused(service.spec.rollout, _deployment(service, observed)),
    )


def _deployment(service: InferenceService, observed: Observed) -> Manifest | None:
    """Returns the Deployment of the service, if it is the service's own."""
    found = observed.child(DEPLOYMENT, names.engine(service.name))
    return found if found is not None and is_controlled_by(found, service.uid) else None
