"""All objects that an InferenceService wants, complete, in the order in which they are written.

Pure: what they depend on besides the resource is in the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.operator import (
    desired_engine,
    desired_loader,
    desired_network,
    engine_cache,
    names,
)
from octavo.operator.desired_engine import Strategy
from octavo.operator.fingerprint import fingerprint
from octavo.operator.kinds import (
    CHILD_KINDS,
    CONFIG_MAP,
    NETWORK_POLICY,
    POD_MONITOR,
    Manifest,
    kind_of,
)
from octavo.operator.observed import Installation
from octavo.operator.spec import InferenceService


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the objects depend on besides the resource."""

    installation: Installation
    references: str
    """Hash of the data that pods take values from; empty when there is none."""
    kinds: frozenset[str]
    """Optional kinds that the cluster has."""
    image: str
    """Of the engines."""
    strategy: Strategy
    replicas: int | None
    """None leaves the number to others."""
    is_paused: bool = False
    """Whether engines are not replaced for now."""
    kept: tuple[str, ...] = ()
    """Folders of the model's volume that its loader must not remove; none: it removes none."""
    claim: str = ""
    """UID of the claim of the model's volume; empty while there is none."""


def children(service: InferenceService, given: Circumstances) -> list[Manifest]:
    """Returns the objects that are wanted, each with its owner and the hash of its content."""
    caller = given.installation.gateway_identity
    template = desired_engine.pod_template(service, given.image, given.references, caller)
    found = [
        desired_network.engine_policy(service, given.installation),
        desired_network.service(service),
        desired_network.disruption_budget(service),
        desired_engine.deployment(
            service, template, given.strategy, given.replicas, is_paused=given.is_paused
        ),
    ]
    volume = service.spec.cache.volume
    if service.spec.model.source.is_loaded and volume:
        found += [
            desired_loader.volume_claim(service, volume),
            desired_loader.job(
                service,
                given.installation.loader_image,
                given.references,
                given.kept,
                claim=given.claim,
            ),
            desired_network.loader_policy(service),
        ]
    if service.spec.cache.pinned_prefixes:
        found.append(engine_cache.pins(service))
    if given.installation.pod_monitors and POD_MONITOR.name in given.kinds:
        found.append(desired_network.pod_monitor(service, given.installation))
    if not given.installation.network_policies:
        found = [child for child in found if kind_of(child) != NETWORK_POLICY]
    found.sort(key=lambda child: (CHILD_KINDS.index(kind_of(child)), child["metadata"]["name"]))
    return [_owned(service, child) for child in found]


def content_hash(child: Manifest) -> str:
    """Returns the hash of what we apply, without the number of replicas: it has its own rules."""
    content = child["data"] if kind_of(child) == CONFIG_MAP else child["spec"]
    content = {key: value for key, value in content.items() if key != "replicas"}
    return fingerprint([child["metadata"]["labels"], content])


def _owned(service: InferenceService, child: Manifest) -> Manifest:
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": service.name,
        "uid": service.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = child["metadata"] | {
        "namespace": service.namespace,
        "annotations": child["metadata"].get("annotations", {})
        | {names.APPLIED: content_hash(child)},
        "ownerReferences": [owner],
    }
    return child | {"metadata": metadata}
