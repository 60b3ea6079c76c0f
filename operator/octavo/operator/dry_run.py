"""What a change would cost, told instead of done."""

from __future__ import annotations

import math
from collections.abc import Iterable

from octavo.operator import gpus
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import Manifest
from octavo.operator.pods import template_of

MAX_CHANGES = 256
MAX_LENGTH = 1024


def preview(
    paths: Iterable[str],
    *,
    deployment: Manifest | None,
    wanted: Manifest,
    replicas: int,
    strategy: Strategy,
) -> Manifest:
    """Returns `status.plan`.

    Args:
        paths: what would change.
        deployment: the present one.
        wanted: the one that is wanted.
        replicas: engines wanted.
        strategy: how they are replaced.
    """
    template = wanted["spec"]["template"]
    present = deployment["spec"].get("replicas", 1) if deployment else 0
    is_replaced = deployment is not None and (
        template_of(deployment["spec"]["template"]) != template_of(template)
    )
    surge = _count(strategy.max_surge, replicas) if is_replaced else 0
    return {
        "changes": [path[:MAX_LENGTH] for path in paths][:MAX_CHANGES],
        "restarts": min(present, replicas) if is_replaced else 0,
        "gpus": _gpus(template) * (replicas + surge),
    }


def _gpus(template: Manifest) -> int:
    given = [c.get("resources") or {} for c in template["spec"]["containers"]]
    return sum(gpus.count(resources.get("limits") or {}) for resources in given)


def _count(value: int | str, replicas: int) -> int:
    """Returns how many pods a number or share is, rounded up as Deployments do for a surge."""
    if isinstance(value, int):
        return value
    return math.ceil(int(value.removesuffix("%")) * replicas / 100)
