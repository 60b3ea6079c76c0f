"""How engines are replaced where there is no room for one more.

GPUs are scarce: a new engine that Kubernetes cannot place, or that a quota forbids, waits for ever
beside the one that it is to replace. Then, and only where the new one fits into the place of an old
one, engines are replaced one by one; a mistake in the new revision must never cost the engines that
serve.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from octavo.operator import pods, quantity
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import Manifest
from octavo.operator.observed import annotation
from octavo.operator.spec import Rollout
from octavo.operator.timestamps import age_s

ONE_BY_ONE: Final = Strategy(max_surge=0, max_unavailable=1)

REVISION: Final = "deployment.kubernetes.io/revision"
"""Annotation that Kubernetes gives to a Deployment with its first ReplicaSet."""

_PLACEMENT: Final = ("affinity", "topologySpreadConstraints")

_LOST_NODE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints whose tolerations Kubernetes adds to pods: how long one stays on a node, not where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How engines are replaced now."""

    strategy: Strategy
    is_short_of_room: bool = False
    look_again_s: float | None = None


def decide(
    wanted: Rollout,
    present: Manifest | None,
    engines: Iterable[Manifest],
    template: str,
    now: float,
) -> Decision:
    """Returns the strategy for the Deployment.

    Args:
        wanted: what the user wants.
        present: the Deployment.
        engines: its pods.
        template: hash of the template that is wanted.
        now: Unix time.
    """
    usual = Strategy(max_surge=wanted.max_surge, max_unavailable=wanted.max_unavailable)
    engines = [*engines]
    new = [pod for pod in engines if pods.is_live(pod) and pods.template_of(pod) == template]
    others = [pod for pod in engines if pods.template_of(pod) != template]
    old = [pod for pod in others if pods.is_live(pod)]
    # An engine counts in its quota until it is gone. Only then the usual strategy is written again:
    # that reaches the ReplicaSet, which tries at once what it has tried ever more seldom.
    in_quota = [pod for pod in others if not pods.is_over(pod)]
    refused = [*_refused_s(present, template, in_quota, now)]
    if usual == ONE_BY_ONE:
        return Decision(strategy=usual)
    if present and _strategy_of(present) == ONE_BY_ONE and (refused or (new and old)):
        return Decision(strategy=ONE_BY_ONE, is_short_of_room=True)
    stuck = [pod for pod in new if any(_fits_on_node_of(pod, other) for other in old)]
    waits = [*_unplaced_s(stuck, now), *refused]
    if not (old and waits):
        return Decision(strategy=usual)
    rest_s = wanted.no_room_seconds - max(waits)
    if rest_s > 0:
        return Decision(strategy=usual, look_again_s=rest_s)
    return Decision(strategy=ONE_BY_ONE, is_short_of_room=True)


def is_paused(wanted: Rollout, present: Manifest | None) -> bool:
    """Tells whether the Deployment is to be paused: not before there is something to go on with.

    Kubernetes makes no ReplicaSet for one that is paused, so that without its first there would
    never be an engine.

    Args:
        wanted: what the user wants.
        present: the Deployment.
    """
    return wanted.paused and present is not None and annotation(present, REVISION) != ""


def _strategy_of(deployment: Manifest) -> Strategy:
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    return Strategy(
        max_surge=rolling.get("maxSurge", "25%"),
        max_unavailable=rolling.get("maxUnavailable", "25%"),
    )


def _unplaced_s(engines: Iterable[Manifest], now: float) -> Iterator[float]:
    """Yields how long engines have found no node with room for them."""
    for pod in engines:
        found = pods.unschedulable(pod)
        if "Insufficient" in str(found.get("message")):
            yield age_s(found.get("lastTransitionTime"), now)


def _refused_s(
    present: Manifest | None, template: str, old: Iterable[Manifest], now: float
) -> Iterator[float]:
    """Yields how long a quota has forbidden new engines: there is no pod that could say so."""
    found = pods.condition(present or {}, "ReplicaFailure")
    is_over = found.get("status") == "True" and "exceeded quota" in str(found.get("message"))
    if present is None or not is_over:
        return
    new = present["spec"]["template"]
    if pods.template_of(new) == template and any(_fits_in_quota_of(new, pod) for pod in old):
        yield age_s(found.get("lastTransitionTime"), now)


def _fits_on_node_of(new: Manifest, old: Manifest) -> bool:
    """Tells whether a pod could run where another one runs if that one left."""
    wants, has = (pod["spec"].get("nodeSelector") or {} for pod in (new, old))
    is_alike = _placement(new) == _placement(old) and wants.items() <= has.items()
    return is_alike and _is_within(new, old, "limits", "requests")


def _fits_in_quota_of(template: Manifest, old: Manifest) -> bool:
    """Tells whether a pod of a template could be made, and run, if another one left.

    Quotas are for limits, requests, and pods of a priority class.
    """
    new = _admitted(template, old)
    priority = new["spec"].get("priorityClassName")
    is_alike = priority in (None, old["spec"].get("priorityClassName"))
    return is_alike and _fits_on_node_of(new, old) and _is_within(new, old, "limits")


def _admitted(template: Manifest, old: Manifest) -> Manifest:
    """Returns a template with the tolerations that Kubernetes adds to its pods, as it did before.

    Such as for nvidia.com/gpu to those that ask for one (ExtendedResourceToleration).
    """
    own = template["spec"].get("tolerations") or []
    resources = _amounts(template, ("limits", "requests"))
    added = [
        each
        for each in old["spec"].get("tolerations") or []
        if each not in own and each.get("key") in resources and each.get("operator") == "Exists"
    ]
    return template | {"spec": template["spec"] | {"tolerations": [*own, *added]}}


def _placement(pod: Manifest) -> list[object]:
    spec = pod["spec"]
    tolerations = spec.get("tolerations") or []
    decided = [each for each in tolerations if each.get("key") not in _LOST_NODE]
    return [decided, *(spec.get(field) or None for field in _PLACEMENT)]


def _is_within(new: Manifest, old: Manifest, *parts: str) -> bool:
    """Tells whether a pod has no more of any resource; of several parts the last one counts."""
    needs, leaves = _amounts(new, parts), _amounts(old, parts)
    return all(amount <= leaves.get(resource, quantity.ZERO) for resource, amount in needs.items())


def _amounts(pod: Manifest, parts: Iterable[str]) -> dict[str, quantity.Amount]:
    amounts: dict[str, quantity.Amount] = {}
    for container in pod["spec"].get("containers") or []:
        resources = container.get("resources") or {}
        asked: Manifest = {}
        for part in parts:
            asked |= resources.get(part) or {}
        for resource, value in asked.items():
            amount = quantity.parse(value) or quantity.ZERO
            amounts[resource] = amounts.get(resource, quantity.ZERO) + amount
    return amounts
