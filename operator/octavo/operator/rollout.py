"""How engines are replaced where there is no room for one more.

GPUs are scarce: a new engine that Kubernetes cannot place waits for ever beside the one that it is
to replace. Then, and only where the new one fits into the place of an old one, engines are replaced
one by one; a mistake in the new revision must never cost the engines that serve.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from octavo.operator import pods, quantity
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import Manifest
from octavo.operator.spec import Rollout
from octavo.operator.timestamps import age_s

NO_ROOM_AFTER_S: Final = 30.0
"""How long a new engine waits for a place before an old one makes room."""

ONE_BY_ONE: Final = Strategy(max_surge=0, max_unavailable=1)

_PLACEMENT: Final = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints")


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
    live = [pod for pod in engines if pods.is_live(pod)]
    new = [pod for pod in live if pods.template_of(pod) == template]
    old = [pod for pod in live if pods.template_of(pod) != template]
    if not old or usual == ONE_BY_ONE:
        return Decision(strategy=usual)
    if present and _strategy_of(present) == ONE_BY_ONE and new:
        return Decision(strategy=ONE_BY_ONE, is_short_of_room=True)
    waits = [
        age_s(pods.unschedulable(pod).get("lastTransitionTime"), now)
        for pod in new
        if "Insufficient" in str(pods.unschedulable(pod).get("message"))
        and any(_fits_in_place(pod, other) for other in old)
    ]
    if not waits:
        return Decision(strategy=usual)
    rest_s = NO_ROOM_AFTER_S - max(waits)
    if rest_s > 0:
        return Decision(strategy=usual, look_again_s=rest_s)
    return Decision(strategy=ONE_BY_ONE, is_short_of_room=True)


def _strategy_of(deployment: Manifest) -> Strategy:
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    return Strategy(
        max_surge=rolling.get("maxSurge", "25%"),
        max_unavailable=rolling.get("maxUnavailable", "25%"),
    )


def _fits_in_place(new: Manifest, old: Manifest) -> bool:
    """Tells whether a pod could run where another one runs if that one left."""
    if any(new["spec"].get(field) != old["spec"].get(field) for field in _PLACEMENT):
        return False
    needs, leaves = _needs(new), _needs(old)
    return all(amount <= leaves.get(resource, quantity.ZERO) for resource, amount in needs.items())


def _needs(pod: Manifest) -> dict[str, quantity.Amount]:
    needs: dict[str, quantity.Amount] = {}
    for container in pod["spec"].get("containers") or []:
        resources = container.get("resources") or {}
        asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
        for resource, value in asked.items():
            amount = quantity.parse(value) or quantity.ZERO
            needs[resource] = needs.get(resource, quantity.ZERO) + amount
    return needs
