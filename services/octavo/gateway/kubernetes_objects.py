"""From EndpointSlices and InferenceServices, as the API server shows them, to what was discovered.

Only what is used is read. An object that cannot be read is left out and does no harm to others.
Knows no client; pure but for the log.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from octavo.gateway.discovery import Discovered, Endpoint, Service

log = structlog.get_logger(__name__)

SERVICE_LABEL: Final = "serving.octavo.dev/service"
"""On the slices of an InferenceService's engines: its name."""

NAME_LABEL: Final = "kubernetes.io/service-name"
"""On every slice: the name of its Service, of which engines have a certificate."""

PORT_NAME: Final = "grpc"
TLS_PORT_NAME: Final = "grpcs"
"""Pods whose container calls its port so take mTLS only. Kubernetes puts pods with different ports
into different slices, so that each is known by its own."""

ALL: Final = "*"
"""Stands for all namespaces."""


class Metadata(Struct):
    """What is read of `metadata`."""

    name: str
    namespace: str
    labels: dict[str, str] = {}
    creationTimestamp: str = ""  # noqa: N815
    deletionTimestamp: str = ""  # noqa: N815
    resourceVersion: str = ""  # noqa: N815


class Conditions(Struct):
    """What is read of an endpoint's `conditions`."""

    terminating: bool | None = None


class TargetRef(Struct):
    """What an endpoint is: a pod."""

    name: str = ""
    uid: str = ""


class SliceEndpoint(Struct):
    """One endpoint of a slice."""

    addresses: list[str]
    conditions: Conditions = msgspec.field(default_factory=Conditions)
    targetRef: TargetRef | None = None  # noqa: N815


class Port(Struct):
    """One port of a slice."""

    name: str | None = None
    port: int | None = None


class EndpointSlice(Struct):
    """Endpoints of one Service; a Service may have several slices, and an endpoint be in two."""

    metadata: Metadata
    endpoints: list[SliceEndpoint] | None = None
    ports: list[Port] | None = None


class Model(Struct):
    """What is read of an InferenceService's `spec.model`."""

    servedNames: list[str] = []  # noqa: N815


class Autoscaling(Struct):
    """That there is one is all that is read of `spec.autoscaling`."""


class Spec(Struct):
    """What is read of an InferenceService's `spec`."""

    model: Model = msgspec.field(default_factory=Model)
    replicas: int | None = None
    autoscaling: Autoscaling | None = None


class InferenceService(Struct):
    """A model that somebody wants served."""

    metadata: Metadata
    spec: Spec = msgspec.field(default_factory=Spec)


def discovered(
    slices: Iterable[EndpointSlice],
    services: Iterable[InferenceService],
    bare_names: Collection[str] = (ALL,),
) -> Discovered:
    """Returns what they say together, in an order of its own, so that equal means unchanged.

    Args:
        slices: where engines are.
        services: what is wanted.
        bare_names: namespaces whose services may be asked for by a served name alone; ALL: any.
    """
    found: dict[str, Endpoint] = {}
    for part in sorted(slices, key=lambda s: (s.metadata.namespace, s.metadata.name)):
        for endpoint in _endpoints(part):
            # A pod with addresses of two families, or on its way from slice to slice, is one.
            found.setdefault(endpoint.uid or endpoint.address, endpoint)
    known = [_service(s, bare_names) for s in services if not s.metadata.deletionTimestamp]
    return Discovered(
        endpoints=tuple(sorted(found.values(), key=lambda e: (e.service, e.pod, e.address))),
        services=tuple(sorted(known, key=lambda s: s.id)),
    )


def _endpoints(part: EndpointSlice) -> Iterator[Endpoint]:
    namespace = part.metadata.namespace
    service = part.metadata.labels.get(SERVICE_LABEL, "")
    ports = {port.name: port.port for port in part.ports or ()}
    tls_name = ""
    if TLS_PORT_NAME in ports:
        tls_name = f"{part.metadata.labels.get(NAME_LABEL, '')}.{namespace}.svc"
    port = ports.get(TLS_PORT_NAME if tls_name else PORT_NAME)
    for endpoint in part.endpoints or ():
        if not (service and port and endpoint.addresses):
            continue
        host, pod = endpoint.addresses[0], endpoint.targetRef or TargetRef()
        yield Endpoint(
            address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            uid=pod.uid,
            pod=f"{namespace}/{pod.name}" if pod.name else "",
            service=f"{namespace}/{service}",
            terminating=bool(endpoint.conditions.terminating),
            tls_name=tls_name,
        )


def _service(service: InferenceService, bare_names: Collection[str]) -> Service:
    metadata, spec = service.metadata, service.spec
    return Service(
        id=f"{metadata.namespace}/{metadata.name}",
        names=tuple(dict.fromkeys(spec.model.servedNames)) or (metadata.name,),
        created_unix_s=_unix_s(metadata.creationTimestamp),
        may_be_bare=ALL in bare_names or metadata.namespace in bare_names,
        may_come=spec.replicas != 0 or spec.autoscaling is not None,
    )


def _unix_s(timestamp: str) -> int:
    try:
        return int(datetime.datetime.fromisoformat(timestamp).timestamp())
    except ValueError:  # hand-made objects may have none
        return 0
