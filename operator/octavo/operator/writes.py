"""Which objects have to be written so that a service's children are as wanted.

Nothing is written that is already so, nothing is touched that belongs to somebody else, and what is
no longer wanted goes last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from octavo.operator import comparison, model_state, names, pods, quantity
from octavo.operator.desired_engine import CONTAINER, MODELS_VOLUME
from octavo.operator.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    PASSING_KINDS,
    VOLUME_CLAIM,
    Kind,
    Manifest,
    kind_of,
)
from octavo.operator.observed import Observed, annotation, is_controlled_by, metadata, of_kind
from octavo.operator.plan import FIELD_MANAGER, Apply, Delete, Scale
from octavo.operator.pod_parts import MODELS

_POD: Final = "spec.template.spec"
_IMAGE_VOLUME: Final = {
    f"{_POD}.volumes[{MODELS_VOLUME}]",
    f"{_POD}.containers[{CONTAINER}].volumeMounts[{MODELS}]",
}
"""What an API server without image volumes takes out of a Deployment that has one."""
_USES: Final = {VOLUME_CLAIM: pods.uses_claim, CONFIG_MAP: pods.uses_config_map}
"""What pods mount, and how it is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What has to be written, and what stands in the way."""

    writes: tuple[Apply | Scale | Delete, ...] = ()
    paths: tuple[str, ...] = ()
    """The same for people: objects, and the fields of theirs that change."""
    taken: tuple[str, ...] = ()
    """Objects with a name that we need, but of somebody else."""
    is_curtailed: bool = False
    """Whether the API server took a field from us that it does not know: image volumes."""


def changes(
    observed: Observed,
    wanted: Iterable[Manifest],
    *,
    waiting: frozenset[Kind] = frozenset(),
    guarded: frozenset[Kind] = frozenset(),
) -> Changes:
    """Returns what has to be written.

    Args:
        observed: what there is.
        wanted: complete objects, in the order in which they are to be written.
        waiting: kinds whose objects have to stay as they are for now.
        guarded: kinds that are written only to the very state that was observed.
    """
    uid = metadata(observed.resource)["uid"]
    writes: list[Apply | Scale | Delete] = []
    paths: list[str] = []
    taken: list[str] = []
    is_curtailed = False
    kept: set[tuple[Kind, str]] = set()
    for child in wanted:
        kind, name = kind_of(child), child["metadata"]["name"]
        kept.add((kind, name))
        found = observed.child(kind, name)
        if found is not None and metadata(found).get("deletionTimestamp"):
            continue  # it is made anew when it is gone
        if found is not None and not is_controlled_by(found, uid):
            taken.append(f"{kind.name} {name}")
        elif kind == JOB and found is not None and _has_lost_volume(found, observed):
            writes.append(_delete(kind, found))
            paths.append(f"{kind.name} {name}: is made anew")
        elif kind in waiting:
            writes += scaling(found, child["spec"].get("replicas")) if kind == DEPLOYMENT else []
        elif found is not None and _is_curtailed(child, found):
            is_curtailed = True
        else:
            write, reasons = _write(child, found, is_guarded=kind in guarded)
            writes += [write] if write else []
            paths += reasons
    for extra in _unwanted(observed, uid, kept):
        writes.append(extra)
        paths.append(f"{extra.kind.name} {extra.name}: goes")
    return Changes(
        writes=tuple(writes), paths=tuple(paths), taken=tuple(taken), is_curtailed=is_curtailed
    )


def scaling(deployment: Manifest | None, replicas: int | None) -> list[Scale]:
    """Returns the change of a Deployment's number of replicas, while all else of it has to wait.

    Args:
        deployment: the present one.
        replicas: wanted; None: whatever there are.
    """
    if deployment is None or replicas is None or deployment["spec"].get("replicas") == replicas:
        return []
    meta = metadata(deployment)
    return [
        Scale(
            kind=DEPLOYMENT,
            name=meta["name"],
            uid=meta["uid"],
            replicas=replicas,
            takes_away=_is_fewer(deployment, replicas),
        )
    ]


def owns_replicas(deployment: Manifest) -> bool:
    """Whether the number of replicas is a field of ours."""
    return any(
        entry.get("manager") == FIELD_MANAGER
        and entry.get("operation") == "Apply"
        and "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
        for entry in metadata(deployment).get("managedFields") or []
    )


def _write(
    child: Manifest, found: Manifest | None, *, is_guarded: bool
) -> tuple[Apply | Delete | None, list[str]]:
    kind, name = kind_of(child), child["metadata"]["name"]
    if found is None:
        return Apply(manifest=child, creates=True), [f"{kind.name} {name}: is made"]
    if kind == JOB:  # its template cannot change; what has ended stays as it is
        is_as_applied = annotation(found, names.APPLIED) == annotation(child, names.APPLIED)
        if is_as_applied or model_state.is_finished(found):
            return None, []
        return _delete(kind, found), [f"{kind.name} {name}: is made anew"]
    if kind == VOLUME_CLAIM:
        child = _not_shrunk(child, found)
    # A field that is no longer wanted shows by the hash of what was applied.
    drift = comparison.differences(found, child)
    if not drift:
        return None, []
    # The UID makes it fail on an object that was made anew since.
    state = ("uid", "resourceVersion") if is_guarded else ("uid",)
    bound = {key: metadata(found)[key] for key in state}
    bound = child | {"metadata": child["metadata"] | bound}
    takes_away = kind == DEPLOYMENT and _is_fewer(found, child["spec"].get("replicas"))
    fields = [path for path in drift if not path.startswith("metadata.")]
    reasons = [f"{kind.name} {name}: {path}" for path in fields]
    write = Apply(manifest=bound, creates=False, takes_away=takes_away)
    return write, reasons or [f"{kind.name} {name}: fields go"]


def _has_lost_volume(job: Manifest, observed: Observed) -> bool:
    """Tells whether what a Job did is lost; its pods keep a claim from going, too."""
    claim = observed.child(VOLUME_CLAIM, names.models(str(metadata(observed.resource)["name"])))
    return claim is not None and model_state.is_of_lost_volume(job, claim)


def _is_fewer(deployment: Manifest, replicas: int | None) -> bool:
    """Tells whether a Deployment is to have fewer replicas than it has."""
    return replicas is not None and replicas < deployment["spec"].get("replicas", 1)


def _not_shrunk(child: Manifest, found: Manifest) -> Manifest:
    """Returns a claim with no less than it has, whoever made it grow: no volume shrinks."""
    wanted, has = (claim["spec"]["resources"] for claim in (child, found))
    sizes = [quantity.parse(of["requests"]["storage"]) or quantity.ZERO for of in (wanted, has)]
    kept = {"requests": has["requests"]} if sizes[1] > sizes[0] else wanted
    return child | {"spec": child["spec"] | {"resources": kept}}


def _is_curtailed(child: Manifest, found: Manifest) -> bool:
    """Tells whether an object lacks only what the API server drops however often it is written."""
    if kind_of(child) != DEPLOYMENT:
        return False
    volumes = child["spec"]["template"]["spec"]["volumes"]
    has_image = any("image" in volume for volume in volumes)
    return has_image and set(comparison.differences(found, child)) == _IMAGE_VOLUME


def _unwanted(observed: Observed, uid: str, kept: set[tuple[Kind, str]]) -> list[Delete]:
    return [
        _delete(kind, child)
        for kind in reversed(PASSING_KINDS)
        for child in of_kind(observed.children, kind)
        if (kind, child["metadata"]["name"]) not in kept
        and is_controlled_by(child, uid)
        and not metadata(child).get("deletionTimestamp")
        and not _is_used(observed, kind, child["metadata"]["name"])
    ]


def _is_used(observed: Observed, kind: Kind, name: str) -> bool:
    """Tells whether a pod, or the Deployment that may start one, still mounts an object."""
    uses = _USES.get(kind)
    templates = [d["spec"]["template"] for d in of_kind(observed.children, DEPLOYMENT)]
    return uses is not None and any(uses(pod, name) for pod in [*observed.pods, *templates])


def _delete(kind: Kind, child: Manifest) -> Delete:
    meta = metadata(child)
    return Delete(
        kind=kind,
        name=meta["name"],
        uid=meta["uid"],
        resource_version=str(meta.get("resourceVersion", "")),
    )
