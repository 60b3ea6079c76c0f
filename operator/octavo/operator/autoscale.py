"""How many engines a service needs, by what the gateways say of it. A pure controller.

Up:    as soon as a new request would wait longer than the target, but only when the engines that
       are there already serve: more engines that load help nobody sooner.
Down:  after an idle window without a moment of more than little load; if that turns out to have
       been too early, the next window is twice as long (up to eight times). Those that do not
       serve, such as one without a node, are the first that Kubernetes takes.
Zero:  after an idle window without a request, counted from when the last engine could serve, for
       loading is not idle, and from when the youngest gateway began, for it knows of no request
       before that. From zero at once, by one request that is held, or that came and left.

Of arrivals it asks only how long ago the last one was. Their rate would have to be compared with
what an engine can do, which depends on lengths and cache hits; the queue is what arrivals exceed
that by, in seconds, and is above the target before the mean of a minute tells.

What it must remember is in the status, and changes only when something happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from octavo.operator.kinds import Manifest
from octavo.operator.observed import GatewayReport, Gateways, ServiceLoad
from octavo.operator.spec import Autoscaling
from octavo.operator.timestamps import from_text, to_text

WANTED_S: Final = 60.0
"""How long one request keeps a service from staying at zero, whatever becomes of its client."""

LOADING_S: Final = 900.0
"""How long engines may load before others are added all the same."""

_LOOK_S: Final = 60.0
"""Between two looks at engines that load: that one has had its time is told by no event."""

_LITTLE_QUEUE: Final = 0.5
"""Share of the target below which the load is little."""
_LITTLE_USE: Final = 0.7
"""Share of their places or blocks that the remaining engines may have in use."""
_MAX_PATIENCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What all gateways together say of a service."""

    held: int
    in_flight: int
    queue_s: float
    in_use: float
    """Engines that what runs would fill."""
    wanted_age_s: float | None
    """Since the last request that is known; None when none is."""
    quiet_s: float
    """How long nobody has sent a request, as far as the gateways can know."""
    is_complete: bool
    """Whether every gateway said it: without that nothing is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the controller remembers from one look to the next."""

    replicas: int | None = None
    reason: str = ""
    """Of the last change, for people."""
    low_since: float | None = None
    last_up: float | None = None
    last_down: float | None = None
    patience: int = 1

    @classmethod
    def of(cls, status: Manifest) -> Memory:
        """Returns what the status has kept."""
        kept = status.get("autoscaling") or {}
        return cls(
            replicas=kept.get("replicas"),
            reason=kept.get("reason", ""),
            low_since=from_text(kept.get("lowSince")),
            last_up=from_text(kept.get("lastUp")),
            last_down=from_text(kept.get("lastDown")),
            patience=kept.get("patience", 1),
        )

    def as_status(self) -> Manifest:
        """Returns what the status is to keep."""
        times = (
            ("lowSince", self.low_since), ("lastUp", self.last_up), ("lastDown", self.last_down),
        )  # fmt: skip
        kept: Manifest = {"replicas": self.replicas, "reason": self.reason}
        kept |= {name: to_text(time) for name, time in times if time is not None}
        return kept | ({"patience": self.patience} if self.patience > 1 else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The engines of the service."""

    replicas: int | None
    """That the Deployment asks for; None when there is none yet."""
    routable: int
    loading: int
    """Those that are not routable and may soon be."""
    places: int
    """Requests that one engine runs at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How many engines are wanted."""

    memory: Memory
    look_again_s: float | None = None

    @property
    def replicas(self) -> int:
        """Engines wanted."""
        assert self.memory.replicas is not None
        return self.memory.replicas


def load_of(service: str, gateways: Gateways | None) -> Load | None:
    """Returns the load of a service; None when no gateway says anything."""
    if gateways is None or not gateways.reports:
        return None
    # What a gateway that drains has is there, however few engines it sees; each of the others sees
    # what engines do for all of them.
    reports = (*gateways.reports, *gateways.leaving)
    loads = _of_service(service, reports)
    present = _of_service(service, gateways.reports)
    ages = [load.wanted_age_s for load in loads if load.wanted_age_s is not None]
    begun = [r.uptime_s for r in gateways.reports if r.uptime_s is not None]
    return Load(
        held=sum(load.held for load in loads),
        in_flight=sum(load.in_flight for load in loads),
        queue_s=max((load.queue_s for load in present), default=0.0),
        in_use=max((load.in_use for load in present), default=0.0),
        wanted_age_s=min(ages, default=None),
        quiet_s=min([*ages, *begun], default=math.inf),
        is_complete=gateways.silent == 0,
    )


def decide(
    rule: Autoscaling, load: Load | None, fleet: Fleet, memory: Memory, now: float
) -> Decision:
    """Returns how many engines are wanted now."""
    if fleet.replicas is None:
        first = min(max(rule.min_replicas, 1), rule.max_replicas)
        return Decision(memory=Memory(replicas=first, reason="first start", last_up=now))
    present = fleet.replicas
    bounded = min(max(present, rule.min_replicas), rule.max_replicas)
    if bounded != present:
        return _changed(memory, present, bounded, "minReplicas and maxReplicas", now)
    memory = replace(memory, replicas=present)
    if load is None:
        return Decision(memory=replace(memory, low_since=None))
    if present == 0:
        return from_zero(rule, load, memory, now)
    if load.queue_s > rule.target_queue_seconds:
        return _up(rule, load, fleet, replace(memory, low_since=None), now)
    return _down(rule, load, fleet, memory, now)


def from_zero(rule: Autoscaling, load: Load, memory: Memory, now: float) -> Decision:
    """Returns how many engines are wanted of a service that has none: one for a request."""
    # Not longer than the idle window, or the request before it would wake the service again.
    recent_s = min(WANTED_S, rule.idle_seconds)
    is_wanted = load.wanted_age_s is not None and load.wanted_age_s < recent_s
    if load.held or is_wanted:
        return _changed(memory, 0, 1, "a request came", now)
    return Decision(memory=memory)


def _up(rule: Autoscaling, load: Load, fleet: Fleet, memory: Memory, now: float) -> Decision:
    present = memory.replicas or 0
    is_loading = fleet.routable < present
    waited_s = LOADING_S if memory.last_up is None else now - memory.last_up
    if present >= rule.max_replicas or (is_loading and waited_s < LOADING_S):
        return Decision(memory=memory)
    needed = math.ceil(present * min(load.queue_s / rule.target_queue_seconds, 1e6))
    wanted = min(needed, present + rule.max_step_up, rule.max_replicas)
    if memory.last_down is not None and now - memory.last_down < 2 * _window_s(rule, memory):
        memory = replace(memory, patience=min(_MAX_PATIENCE, memory.patience * 2))
    return _changed(memory, present, wanted, f"requests would wait {load.queue_s:.1f} s", now)


def _down(rule: Autoscaling, load: Load, fleet: Fleet, memory: Memory, now: float) -> Decision:
    present = memory.replicas or 0
    if present <= rule.min_replicas:
        return Decision(memory=replace(memory, low_since=None))
    if not _is_low(rule, load, fleet, present):
        rest_s = _LOOK_S if fleet.loading else None
        return Decision(memory=replace(memory, low_since=None), look_again_s=rest_s)
    since = now if memory.low_since is None else min(memory.low_since, now)
    idle_s = now - since
    window_s = float(rule.idle_seconds) if present == 1 else _window_s(rule, memory)
    if present == 1:
        idle_s = 0.0 if load.in_flight else min(idle_s, load.quiet_s)
    if idle_s < window_s:
        rest_s = max(1.0, window_s - idle_s)
        return Decision(memory=replace(memory, low_since=since), look_again_s=rest_s)
    if present == 1:
        return _changed(memory, 1, 0, f"no request for {rule.idle_seconds} s", now)
    lowest = max(rule.min_replicas, 1)
    wanted = max(lowest, present - rule.max_step_down)
    held_well = (memory.last_up or 0) < (memory.last_down or 0)
    patience = max(1, memory.patience // 2) if held_well else memory.patience
    memory = replace(memory, patience=patience)
    return _changed(memory, present, wanted, "fewer engines are enough", now)


def _is_low(rule: Autoscaling, load: Load, fleet: Fleet, present: int) -> bool:
    """Tells whether the load is little enough to begin to count.

    The last engine only has to be there: its requests are counted by their age. Of several, those
    go first that do not serve.
    """
    if not load.is_complete or load.held or fleet.loading:
        return False
    if present == 1:
        return True
    rest = min(fleet.routable, present - min(rule.max_step_down, present - 1))
    is_short = load.queue_s <= _LITTLE_QUEUE * rule.target_queue_seconds
    in_use = max(load.in_use, load.in_flight / fleet.places)
    return is_short and in_use <= _LITTLE_USE * rest


def _window_s(rule: Autoscaling, memory: Memory) -> float:
    return float(rule.idle_seconds * memory.patience)


def _changed(memory: Memory, present: int, wanted: int, why: str, now: float) -> Decision:
    if wanted == present:
        return Decision(memory=memory)
    changed = replace(
        memory, replicas=wanted, reason=f"{present} → {wanted}: {why}", low_since=None
    )
    is_up = wanted > present
    changed = replace(changed, last_up=now) if is_up else replace(changed, last_down=now)
    return Decision(memory=changed)


def _of_service(service: str, reports: Iterable[GatewayReport]) -> list[ServiceLoad]:
    return [load for r in reports for load in r.services if load.service == service]
