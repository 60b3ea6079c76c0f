"""Which models in a service's volume its loader must not remove, to make room for another one.

Those that an engine serves from, or would when it was started again: what runs goes on without its
files, but nothing begins without them.
"""

from __future__ import annotations

from octavo.operator import desired_engine, names, pods
from octavo.operator.kinds import DEPLOYMENT
from octavo.operator.observed import Observed, of_kind
from octavo.operator.spec import InferenceService


def kept(service: InferenceService, observed: Observed) -> tuple[str, ...]:
    """Returns the folders of models that are wanted or in use, sorted.

    None when a pod uses the volume and nobody knows what of it: then nothing may be removed.
    """
    claim = names.models(service.name)
    loaders = pods.of_component(observed.pods, names.LOADER)
    using = [
        *(deployment["spec"]["template"] for deployment in of_kind(observed.children, DEPLOYMENT)),
        *(pod for pod in observed.pods if pod not in loaders and not pods.is_over(pod)),
    ]
    used = {desired_engine.folder_of(pod) for pod in using if pods.uses_claim(pod, claim)}
    return () if "" in used else tuple(sorted({service.spec.model.key, *used}))
