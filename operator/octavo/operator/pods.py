"""What a pod says of itself."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.operator import names
from octavo.operator.kinds import Manifest
from octavo.operator.observed import annotation, metadata


def of_component(pods: Iterable[Manifest], component: str) -> list[Manifest]:
    """Returns the pods of engines or loaders, by name."""
    found = [
        pod
        for pod in pods
        if (metadata(pod).get("labels") or {}).get(names.COMPONENT_LABEL) == component
    ]
    return sorted(found, key=lambda pod: str(metadata(pod)["name"]))


def is_going(pod: Manifest) -> bool:
    """Whether it is being deleted: an engine drains meanwhile."""
    return bool(metadata(pod).get("deletionTimestamp"))


def is_over(pod: Manifest) -> bool:
    """Whether its containers have ended for good, so that it holds no volume any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_live(pod: Manifest) -> bool:
    """Whether it is there to stay: neither going nor at its end."""
    return not is_going(pod) and not is_over(pod)


def condition(pod: Manifest, type: str) -> Manifest:
    """Returns a condition; empty when it has none of that type."""
    conditions: list[Manifest] = (pod.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == type), {})


def has(pod: Manifest, type: str) -> bool:
    """Whether a condition is true."""
    return condition(pod, type).get("status") == "True"


def is_routable(pod: Manifest) -> bool:
    """Whether Kubernetes counts it as ready, which takes our gate, too."""
    return has(pod, "Ready") and has(pod, names.ROUTABLE_GATE)


def is_cut_off(pod: Manifest) -> bool:
    """Whether its node does not answer: then Kubernetes takes Ready away, for no reason.

    What the node said last, such as that the containers are ready, stays as it was.
    """
    ready = condition(pod, "Ready")
    is_taken = ready.get("status") == "False" and not ready.get("reason")
    return is_taken and has(pod, "ContainersReady")


def template_of(pod: Manifest) -> str:
    """Returns the hash of the template that it was made from."""
    return annotation(pod, names.TEMPLATE)


def unschedulable(pod: Manifest) -> Manifest:
    """Returns the condition with the scheduler's sentence; empty when there is none."""
    found = condition(pod, "PodScheduled")
    is_stuck = found.get("status") == "False" and found.get("reason") == "Unschedulable"
    return found if is_stuck else {}


def uses_claim(pod: Manifest, claim: str) -> bool:
    """Whether it mounts a volume claim."""
    volumes = (pod.get("spec") or {}).get("volumes") or []
    return any((v.get("persistentVolumeClaim") or {}).get("claimName") == claim for v in volumes)


def uses_config_map(pod: Manifest, name: str) -> bool:
    """Whether it mounts a ConfigMap."""
    volumes = (pod.get("spec") or {}).get("volumes") or []
    return any((v.get("configMap") or {}).get("name") == name for v in volumes)
