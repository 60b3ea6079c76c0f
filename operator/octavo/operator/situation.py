"""All that the status of a valid InferenceService is made from."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.operator import pods, routable
from octavo.operator.conditions import NOT_ROUTABLE, ROUTABLE, Condition
from octavo.operator.counts import Counts
from octavo.operator.kinds import Manifest
from octavo.operator.observed import Observed
from octavo.operator.replicas import Replicas
from octavo.operator.revision import Revision
from octavo.operator.spec import InferenceService
from octavo.operator.writes import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is observed of a service, and what has been decided about it."""

    service: InferenceService
    observed: Observed
    deployment: Manifest | None
    engines: tuple[Manifest, ...]
    """Pods of engines, by name."""
    model: Condition
    revision: Revision
    replicas: Replicas
    counts: Counts
    changes: Changes
    is_short_of_room: bool
    preview: Manifest | None
    """Of a dry run."""
    now: float

    @property
    def live(self) -> list[Manifest]:
        """The engines that are there to stay."""
        return [pod for pod in self.engines if pods.is_live(pod)]

    @property
    def told_unreached_in_s(self) -> float | None:
        """After what time it is to be told that no gateway reaches an engine, zero: now.

        None while one does. What has been told stays so until one does, whatever else is not known:
        gateways that are silent, or not yet heard of by an operator that has just begun.
        """
        since_s = routable.unreached_s(self.live, self.observed.gateways)
        if since_s is None:
            return None
        is_told = pods.condition(self.observed.resource, ROUTABLE).get("reason") == NOT_ROUTABLE
        return 0.0 if is_told else max(0.0, routable.UNREACHED_S - since_s)

    @property
    def are_routable(self) -> bool:
        """Whether some engine gets requests, as far as is known."""
        return self.counts.routable > 0 and self.told_unreached_in_s != 0.0

    @property
    def is_deployed(self) -> bool:
        """Whether the Deployment has the wanted revision, and its controller has taken it up.

        Its number of replicas is no part of it: a service that is scaled stays ready.
        """
        deployment = self.deployment
        if deployment is None or deployment["metadata"].get("deletionTimestamp"):
            return False
        is_taken_up = (deployment.get("status") or {}).get("observedGeneration", 0) > 0
        template = pods.template_of(deployment["spec"]["template"])
        return bool(is_taken_up) and template == self.revision.template

    @property
    def is_rolled_out(self) -> bool:
        """Whether no engine of another revision is left, or could still be made."""
        return self.is_deployed and not self.counts.old
