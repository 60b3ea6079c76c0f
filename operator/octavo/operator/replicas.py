"""Who decides how many engines run: the user, the operator, or somebody else. Never two of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from octavo.operator import autoscale, failures, names, pods, writes
from octavo.operator.kinds import Manifest
from octavo.operator.observed import Observed, metadata
from octavo.operator.spec import Autoscaling, InferenceService
from octavo.operator.timestamps import age_s

DEFAULT_PLACES: Final = 64
"""Requests that an engine runs at once where options.maxNumSeqs does not say: its own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How many engines are wanted."""

    number: int
    applied: int | None
    """What the Deployment gets; None: the number is none of our business."""
    is_borrowed: bool = False
    """Whether we own the number without deciding it any more. Dropping it would reset it, so it is
    written as it was observed, until whoever decides now has written it once."""
    needed: int
    """How many have to be routable before the service is ready."""
    memory: autoscale.Memory | None = None
    look_again_s: float | None = None

    @property
    def scaled(self) -> int | None:
        """What the Deployment is scaled to apart from all that it gets; None: to nothing else."""
        return None if self.applied in (None, self.number) else self.number


def decide(
    service: InferenceService, observed: Observed, deployment: Manifest | None, now: float
) -> Replicas:
    """Returns how many engines are wanted.

    Args:
        service: what the user wants.
        observed: what there is.
        deployment: of this service; None when there is none.
        now: Unix time.
    """
    spec = service.spec
    present = deployment["spec"].get("replicas", 1) if deployment else None
    if spec.replicas is not None:
        return Replicas(number=spec.replicas, applied=spec.replicas, needed=spec.replicas)
    rule = spec.autoscaling
    if rule is None:
        number = 1 if present is None else present
        is_borrowed = deployment is not None and writes.owns_replicas(deployment)
        applied = number if is_borrowed else None
        return Replicas(number=number, applied=applied, is_borrowed=is_borrowed, needed=number)
    memory = autoscale.Memory.of(observed.resource.get("status") or {})
    load = autoscale.load_of(service.full_name, observed.gateways)
    if service.is_dry_run and present is not None:
        return _held(rule, present, load, memory, now)
    engines = [p for p in pods.of_component(observed.pods, names.ENGINE) if pods.is_live(p)]
    fleet = autoscale.Fleet(
        replicas=present,
        routable=sum(map(pods.is_routable, engines)),
        loading=sum(is_loading(pod, now) for pod in engines),
        places=int(spec.engine.options.get("maxNumSeqs", DEFAULT_PLACES)),
    )
    decision = autoscale.decide(rule, load, fleet, memory, now)
    return Replicas(
        number=decision.replicas,
        applied=decision.replicas,
        needed=min(decision.replicas, max(rule.min_replicas, 1)),
        memory=decision.memory,
        look_again_s=decision.look_again_s,
    )


def _held(
    rule: Autoscaling,
    present: int,
    load: autoscale.Load | None,
    memory: autoscale.Memory,
    now: float,
) -> Replicas:
    """Returns the number of engines in a dry run: as it is, but a service that sleeps wakes.

    Bounds and target may be what is tried out. That a request starts an engine is a promise, to
    be kept unless autoscaling itself is what is tried out.
    """
    number = present
    if present == 0 and memory.replicas is not None and load is not None:
        decision = autoscale.from_zero(rule, load, replace(memory, replicas=0), now)
        number, memory = decision.replicas, decision.memory
    return Replicas(number=number, applied=present, needed=number, memory=memory)


def is_loading(pod: Manifest, now: float) -> bool:
    """Tells whether an engine gets no requests and may soon.

    One that loads may take as long as it needs. One that nothing comes of, for want of a node or
    because it ends each time, or that has loaded and that gateways do not reach, has its time.
    """
    if pods.is_routable(pod):
        return False
    if age_s(metadata(pod).get("creationTimestamp"), now) < autoscale.LOADING_S:
        return True
    return not pods.has(pod, "ContainersReady") and failures.of_pod(pod, now) is None
