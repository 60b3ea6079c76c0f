"""What Kubernetes' Deployment controller makes pods of, as far as a paused Deployment shows it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.operator import pods
from octavo.operator.kinds import Manifest


@dataclass
class ReplicaSets:
    """The templates that each Deployment has a ReplicaSet of, oldest first, by its UID."""

    templates: dict[str, list[Manifest]] = field(default_factory=dict)

    def number(self, deployment: Manifest) -> int:
        """Returns how many there are."""
        return len(self._of(deployment))

    def scaled(self, deployment: Manifest, live: Iterable[Manifest]) -> Manifest | None:
        """Returns the template of the ReplicaSet that is given the number of pods; None: of none.

        A Deployment that is paused gets none for its template. The only one that has pods is
        scaled, or the newest where none has any; where several have, each keeps its own.
        """
        known, template = self._of(deployment), deployment["spec"]["template"]
        if not deployment["spec"].get("paused"):
            known[:] = [t for t in known if pods.template_of(t) != pods.template_of(template)]
            known.append(copy.deepcopy(template))
            return known[-1]
        active = {pods.template_of(pod) for pod in live}
        candidates = [t for t in known if pods.template_of(t) in active] or known[-1:]
        return candidates[0] if len(candidates) == 1 else None

    def _of(self, deployment: Manifest) -> list[Manifest]:
        return self.templates.setdefault(deployment["metadata"]["uid"], [])
