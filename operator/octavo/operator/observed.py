"""What the operator knows of one InferenceService at one moment, as values.

Kubernetes objects are plain dictionaries, as the API server's JSON has them, with their
`managedFields`. Knows neither how they are fetched nor what follows from them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from octavo.operator.kinds import Kind, Manifest
from octavo.runtime.certificates import valid_until

State = Literal[
    "connecting", "loading", "warming", "ready", "draining", "failed", "suspected", "lost"
]
"""How a gateway sees an engine."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Reference:
    """A Secret or ConfigMap that the pods of a service take values from."""

    kind: Literal["Secret", "ConfigMap"]
    name: str
    key: str = ""
    """The one key that is taken; empty takes all of them."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" with the key {self.key}" if self.key else "")


def digest(reference: Reference, found: Manifest | None) -> str | None:
    """Returns a hash of the data that a reference takes; None while there is no such data.

    Args:
        reference: what is taken.
        found: the Secret or ConfigMap of that name, None when there is none.
    """
    data: dict[str, str] = {}
    for part in ("data", "binaryData"):
        data |= (found or {}).get(part) or {}
    if found is None or (reference.key and reference.key not in data):
        return None
    hashed = hashlib.blake2b(digest_size=16)
    for key in sorted(data):
        if reference.key in ("", key):
            for text in (key, data[key]):
                raw = text.encode("utf-8", "surrogatepass")
                hashed.update(len(raw).to_bytes(8, "big") + raw)
    return hashed.hexdigest()


def certificate_end(reference: Reference, found: Manifest | None) -> float | None:
    """Returns the Unix time at which what a reference takes ends; None where it is no certificate.

    Args:
        reference: what is taken.
        found: the Secret of that name, None when there is none.
    """
    encoded = ((found or {}).get("data") or {}).get(reference.key, "")
    try:
        return valid_until(base64.b64decode(encoded))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeen:
    """One engine as one gateway sees it: an entry of `engines` in its /state."""

    uid: str
    """UID of the engine's pod; empty where the gateway does not know it."""
    address: str = ""
    pod: str = ""
    service: str = ""
    """NAMESPACE/NAME of the InferenceService."""
    state: State = "connecting"
    routable: bool = False
    """Whether this gateway sends it requests: a probe request passed."""
    in_flight: int = 0
    detail: str = ""
    """Why the state is so, for people."""
    numerics_id: str = ""
    """Equal on engines that compute alike; empty while the gateway does not know it."""
    exact: bool = True
    """Whether its answers depend on nothing else that it computes. Gateways before 0.3.0 do not
    say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """By which names requests reach a service at one gateway."""

    names: tuple[str, ...]
    """One at least; with the namespace where the bare name does not mean the service."""
    lost: tuple[tuple[str, str], ...] = ()
    """Names that it claims, each with the NAMESPACE/NAME of the service that has it."""
    heirs: tuple[tuple[str, str], ...] = ()
    """Names that it has, each with the service that claims it, too, and has it next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """The load of one service at one gateway: an entry of `services` in its /state."""

    service: str
    """NAMESPACE/NAME of the InferenceService."""
    in_flight: int = 0
    held: int = 0
    """Requests that wait because no engine is there."""
    queue_s: float = 0.0
    """Predicted seconds until a request that came now would be begun, least over the engines."""
    in_use: float = 0.0
    """Sum over the engines of the share that is in use, of their places or blocks, by whomever.
    Gateways before 0.3.0 do not say it: zero."""
    wanted_age_s: float | None = None
    """Seconds since the last request came; None when none ever did."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    naming: Naming | None = None
    """None from a gateway that does not tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """What one gateway said lately."""

    gateway: str
    uptime_s: float | None = None
    """How long it runs: of requests before that it knows nothing. None: it is of a version before
    0.3.0, which does not say it, and is taken to have run for ever."""
    engines: tuple[EngineSeen, ...] = ()
    services: tuple[ServiceLoad, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """All gateways."""

    reports: tuple[GatewayReport, ...] = ()
    """Fresh reports of those that are Ready; those about other services may be left out."""
    leaving: tuple[GatewayReport, ...] = ()
    """Fresh reports of those that are not, such as one that drains: it gets no new requests, so
    nothing depends on which engines it sees, but those that it has need their engines."""
    silent: int = 0
    """Ready gateways without a fresh report."""
    unreached_s: float = 0.0
    """For how long it is known that no Ready gateway could send requests to an engine of the
    service. While one is silent that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A write that the API server refused for good when last tried (400, 403, 404, 422).

    Or one that it has failed at for long (500).
    """

    kind: str
    name: str
    message: str
    """The API server's own sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What the operator was installed with; the same for all services."""

    engine_images: Mapping[str, str]
    """Default image of the engine by device: cpu, cuda."""
    loader_image: str
    gateway_namespace: str = ""
    """Namespace of the gateway's pods; empty when there is no gateway."""
    gateway_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that select the gateway's pods: only they reach the engines."""
    gateway_identity: str = ""
    """Name that the gateways' certificate bears."""
    monitoring_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may read the engines' metrics."""
    network_policies: bool = True
    """Whether engines and loaders have NetworkPolicies."""
    pod_monitors: bool = True
    """Whether engines have PodMonitors where the cluster has that kind."""
    pod_monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which a Prometheus selects PodMonitors."""
    pod_monitor_interval: str = ""
    """Time between scrapes, such as 15s; empty leaves it to Prometheus."""
    url: str = ""
    """Where clients reach the gateway, such as http://octavo-gateway.octavo.svc/v1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One InferenceService and all that belongs to it. Any part may be older than another."""

    resource: Manifest
    """The InferenceService."""
    installation: Installation
    children: tuple[Manifest, ...] = ()
    """Objects of kinds.CHILD_KINDS in its namespace whose label names.SERVICE_LABEL is its name,
    whoever owns them."""
    pods: tuple[Manifest, ...] = ()
    """Pods with that label: engines, loaders, and those that are going."""
    references: Mapping[Reference, str | None] = field(default_factory=dict)
    """`digest` of each of `spec.references(resource)`; None: it does not exist. One that is
    missing from the mapping could not be read, which is no reason to act."""
    ends: Mapping[Reference, float] = field(default_factory=dict)
    """Unix time at which the certificate of a reference ends, of those that are one."""
    unread: Mapping[Reference, str] = field(default_factory=dict)
    """Why references could not be read, in the API server's words."""
    gateways: Gateways | None = None
    """None: no gateway is installed, so an engine is routable as soon as it is ready."""
    kinds: frozenset[str] = frozenset()
    """Names of those of kinds.OPTIONAL_KINDS that the cluster has."""
    refusals: tuple[Refusal, ...] = ()
    """Refused writes of the last plan; one that later succeeded is not among them."""

    def child(self, kind: Kind, name: str) -> Manifest | None:
        """Returns the child of that kind and name."""
        return next(
            (c for c in of_kind(self.children, kind) if c["metadata"]["name"] == name), None
        )


def of_kind(objects: Iterable[Manifest], kind: Kind) -> list[Manifest]:
    """Returns the objects of a kind, by name."""
    found = [o for o in objects if o.get("kind") == kind.name]
    return sorted(found, key=lambda o: str(o["metadata"]["name"]))


def metadata(manifest: Manifest) -> Manifest:
    """Returns the metadata of an object."""
    found: Manifest = manifest.get("metadata") or {}
    return found


def annotation(manifest: Manifest, name: str) -> str:
    """Returns an annotation of an object; empty when it has none."""
    return str((metadata(manifest).get("annotations") or {}).get(name, ""))


def is_controlled_by(manifest: Manifest, uid: str) -> bool:
    """Tells whether the object with that UID is the controller of `manifest`."""
    owners = metadata(manifest).get("ownerReferences") or []
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)
