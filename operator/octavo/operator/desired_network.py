"""How engines are found, reached, protected from disruption and measured.

Engines without TLS speak without a password, so their network policy is what keeps strangers out.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from octavo.operator import engine_tls, names
from octavo.operator.kinds import (
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD_MONITOR,
    SERVICE,
    Manifest,
    object_of,
)
from octavo.operator.observed import Installation
from octavo.operator.spec import InferenceService, Variable

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_TRACES = "OTEL_EXPORTER_OTLP"
_COLLECTORS = (f"{_TRACES}_ENDPOINT", f"{_TRACES}_TRACES_ENDPOINT")
_TRACE_PORTS = (4317, 4318)
"""Where collectors listen usually."""
_TLS_PORT = 443
"""Where gRPC goes by an address without a port, whatever its scheme."""
_DNS_PORTS = (53, 5353)
"""That of its Service, and that of its pods where they have not the same."""


def service(wanted: InferenceService) -> Manifest:
    """Returns the headless Service.

    It lists engines before they are ready: gateways connect to them first, and say when they can
    route there. Each pod is listed under those of the ports that it has, so with TLS or without.
    """
    ports = [
        (engine_tls.PLAIN_PORT, names.GRPC_PORT),
        (engine_tls.PORT, names.GRPCS_PORT),
        ("status", names.STATUS_PORT),
    ]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.selector(wanted.name),
        "ports": [
            {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
            for name, port in ports
        ],
    }
    return object_of(
        SERVICE,
        _metadata(wanted),
        spec=spec,
    )


def disruption_budget(wanted: InferenceService) -> Manifest:
    """Returns the budget: one engine at a time may be evicted, whatever their number.

    An eviction is an ordinary end: the engine announces that it drains, requests end or go on
    elsewhere. A budget that never lets the only engine go would stop every drain of its node for
    good; new requests wait at the gateway meanwhile. One that is not ready protects nobody.
    """
    return object_of(
        DISRUPTION_BUDGET,
        _metadata(wanted),
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(wanted.name)},
        },
    )


def engine_policy(wanted: InferenceService, installation: Installation) -> Manifest:
    """Returns who reaches the engines: gateways their API, monitoring their metrics.

    Without a gateway the pods of the namespace are its clients. Engines themselves reach nobody,
    unless their variables say that they send traces; then they reach the port that these name.
    """
    ingress = [_rule("from", [_clients(installation)], names.GRPC_PORT)]
    if installation.monitoring_namespaces:
        readers = [_pods_of(namespace) for namespace in installation.monitoring_namespaces]
        ingress.append(_rule("from", readers, names.STATUS_PORT))
    spec: Manifest = {
        "podSelector": {"matchLabels": names.selector(wanted.name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
    }
    traces = [v for v in wanted.spec.engine.env if v.name.startswith(_TRACES)]
    if traces:
        reached = [(port, "UDP") for port in _DNS_PORTS]
        reached += [(port, "TCP") for port in (*_DNS_PORTS, *_trace_ports(traces))]
        ports = [{"port": port, "protocol": protocol} for port, protocol in reached]
        spec["egress"] = [{"ports": ports}]
    return object_of(
        NETWORK_POLICY,
        _metadata(wanted),
        spec=spec,
    )


def _trace_ports(variables: Iterable[Variable]) -> list[int]:
    """Returns the ports of the collectors; the usual ones while none of them can be read here."""
    ports = [_port_of(v.value) for v in variables if v.name in _COLLECTORS and v.value]
    return sorted({port for port in ports if port is not None}) or list(_TRACE_PORTS)


def _port_of(address: str) -> int | None:
    """Returns the port of a collector; None where it is only known in the pod, as `$(PORT)`."""
    try:
        return urlsplit(address if "//" in address else f"//{address}").port or _TLS_PORT
    except ValueError:
        return None


def loader_policy(wanted: InferenceService) -> Manifest:
    """Returns what the loader reaches: anything, for hubs are anywhere. Nobody reaches it."""
    return object_of(
        NETWORK_POLICY,
        {
            "name": names.load(wanted.name),
            "labels": names.labels(wanted.name, names.LOADER),
        },
        spec={
            "podSelector": {"matchLabels": names.selector(wanted.name, names.LOADER)},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [{}],
        },
    )


def pod_monitor(wanted: InferenceService, installation: Installation) -> Manifest:
    """Returns what makes a Prometheus operator read the engines' metrics."""
    metadata = _metadata(wanted)
    metadata["labels"] = {**installation.pod_monitor_labels, **metadata["labels"]}
    endpoint = {"port": "status", "path": "/metrics"}
    if installation.pod_monitor_interval:
        endpoint["interval"] = installation.pod_monitor_interval
    return object_of(
        POD_MONITOR,
        metadata,
        spec={
            "selector": {"matchLabels": names.selector(wanted.name)},
            "podMetricsEndpoints": [endpoint],
        },
    )


def _metadata(wanted: InferenceService) -> Manifest:
    return {
        "name": names.engine(wanted.name),
        "labels": names.labels(wanted.name, names.ENGINE),
    }


def _rule(direction: str, peers: list[Manifest], port: int) -> Manifest:
    return {direction: peers, "ports": [{"port": port, "protocol": "TCP"}]}


def _clients(installation: Installation) -> Manifest:
    if not installation.gateway_namespace:
        return {"podSelector": {}}
    gateways = _pods_of(installation.gateway_namespace)
    if installation.gateway_labels:
        gateways["podSelector"] = {"matchLabels": dict(installation.gateway_labels)}
    return gateways


def _pods_of(namespace: str) -> Manifest:
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: namespace}}}
