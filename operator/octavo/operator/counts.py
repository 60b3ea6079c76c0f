"""How many engines of a service are how far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo.operator import names, pods
from octavo.operator.kinds import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Engines by what they are; those that go count as draining only."""

    desired: int
    live: int
    updated: int
    """Of the revision that is wanted."""
    ready: int
    """Whose model is loaded."""
    routable: int
    updated_routable: int
    """Of the revision that is wanted, and routable."""
    draining: int

    @property
    def old(self) -> int:
        """Of another revision."""
        return self.live - self.updated


def count(observed_pods: Iterable[Manifest], template: str, desired: int) -> Counts:
    """Returns the numbers.

    Args:
        observed_pods: of the service, loaders among them.
        template: hash of the pod template that is wanted.
        desired: engines wanted.
    """
    engines = pods.of_component(observed_pods, names.ENGINE)
    live = [pod for pod in engines if pods.is_live(pod)]
    updated = [pod for pod in live if pods.template_of(pod) == template]
    return Counts(
        desired=desired,
        live=len(live),
        updated=len(updated),
        ready=sum(pods.has(pod, "ContainersReady") for pod in live),
        routable=sum(pods.is_routable(pod) for pod in live),
        updated_routable=sum(pods.is_routable(pod) for pod in updated),
        draining=sum(pods.is_going(pod) for pod in engines),
    )
