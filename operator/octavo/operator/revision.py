"""The revision of the engines that is wanted, and what it has to wait for.

A revision needs its model in the volume and the Secrets and ConfigMaps that it takes values from.
Until then the engines of the revision before go on.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.operator import desired_engine, model_state, names
from octavo.operator.conditions import Condition
from octavo.operator.fingerprint import fingerprint
from octavo.operator.kinds import DEPLOYMENT, JOB, Kind, Manifest
from octavo.operator.observed import Observed, Reference, annotation
from octavo.operator.pods import template_of
from octavo.operator.spec import InferenceService, mounted_by, references_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """What engines are to be made from."""

    image: str
    references: str
    """Hash of the data that pods take values from."""
    template: str
    """Hash of the pod template."""
    missing: tuple[Reference, ...]
    """Secrets and ConfigMaps that do not exist, or lack the key; mounted ones, too."""
    unread: tuple[Reference, ...]
    """Those of which even that is not known."""
    waiting: frozenset[Kind]
    """Kinds of objects that cannot be written yet."""


def revision(
    service: InferenceService, observed: Observed, deployment: Manifest | None, model: Condition
) -> Revision:
    """Returns the revision that is wanted.

    Args:
        service: what the user wants.
        observed: what there is.
        deployment: of this service; None when there is none.
        model: the condition ModelCached.
    """
    wanted = references_of(service.spec)
    needed = (*wanted, *mounted_by(service.spec))
    known = {ref: observed.references[ref] for ref in needed if ref in observed.references}
    missing = tuple(ref for ref, value in known.items() if value is None)
    unread = tuple(ref for ref in needed if ref not in known)
    lacks_values = any(ref in wanted for ref in (*missing, *unread))
    present = deployment["spec"]["template"] if deployment else None
    if lacks_values and present is not None:
        # The engines that run have got their values: a Secret that vanishes restarts none.
        references = annotation(present, names.REFERENCES)
    else:
        entries = [[ref.kind, ref.name, ref.key, known[ref]] for ref in wanted if ref in known]
        references = fingerprint(entries) if entries else ""
    default = (
        service.spec.engine.image
        or (observed.installation.engine_images[service.spec.engine.device])
    )
    caller = observed.installation.gateway_identity
    template = template_of(desired_engine.pod_template(service, default, references, caller))
    # A new default, which comes with a new operator, restarts nobody: a service keeps the image
    # that it has until its engines are replaced for a reason of their own.
    is_present = deployment is not None and template_of(deployment["spec"]["template"]) == template
    kept = annotation(deployment, names.IMAGE) if deployment and is_present else ""
    image = kept or default
    waiting: set[Kind] = set()
    if unread or (missing and present is None) or _lacks_model(service, present, model):
        waiting.add(DEPLOYMENT)
    # A loader mounts nothing that only engines do.
    is_going = model.reason == model_state.VOLUME_GOING
    if lacks_values or is_going or model_state.others_at_work(service, observed):
        waiting.add(JOB)
    return Revision(
        image=image,
        references=references,
        template=template,
        missing=missing,
        unread=unread,
        waiting=frozenset(waiting),
    )


def _lacks_model(service: InferenceService, present: Manifest | None, model: Condition) -> bool:
    """Tells whether the model is not in the volume; one that engines of a template use is."""
    path = desired_engine.model_path(service.spec.model)
    is_used = present is not None and desired_engine.model_of(present) == path
    return model.status != "True" and not is_used
