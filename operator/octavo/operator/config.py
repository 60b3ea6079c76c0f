"""The operator's settings. Nothing else in the operator reads arguments or the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.operator.cluster import Key
from octavo.operator.observed import Installation
from octavo.runtime.settings import setting
from octavo.v1.errors import BAD_SETTING, OctavoError


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorConfig:
    """One operator process."""

    namespaces: tuple[str, ...] = setting(
        (), "Namespaces whose InferenceServices are served, comma-separated; empty serves all."
    )
    engine_image_cpu: str = setting(
        "octavo-engine:cpu", "Image of engines on processors that names none of its own."
    )
    engine_image_cuda: str = setting(
        "octavo-engine:cuda", "Image of engines on NVIDIA GPUs that names none of its own."
    )
    loader_image: str = setting("octavo-engine:cpu", "Image of the Jobs that load models.")
    gateway_service: str = setting(
        "",
        "NAMESPACE/NAME of the Service before the gateways, which are asked what they can route "
        "to; empty: there is no gateway, and an engine is routable as soon as it is ready.",
    )
    gateway_labels: tuple[str, ...] = setting(
        (), "KEY=VALUE labels of the gateways' pods, comma-separated: only they reach the engines."
    )
    gateway_identity: str = setting(
        "spiffe://cluster.local/ns/octavo/sa/octavo-gateway",
        "Name, a URI or a DNS name, that the gateways' certificate bears: engines with "
        "spec.engine.tls take calls from nobody else. Another one restarts these engines.",
    )
    gateway_url: str = setting(
        "", "Where clients reach the gateways, for the status of the InferenceServices."
    )
    gateway_poll_s: float = setting(
        1.0,
        "Between two questions to each gateway; a request for a service without engines waits "
        "about as long before an engine is started.",
        unit="s",
        minimum=0.1,
        maximum=5,
    )
    monitoring_namespaces: tuple[str, ...] = setting(
        (), "Namespaces whose pods may read the engines' metrics, comma-separated."
    )
    network_policies: bool = setting(
        True,
        "NetworkPolicies for engines and loaders; off takes those away that the operator made.",
    )
    pod_monitors: bool = setting(
        True,
        "PodMonitors for engines where the cluster has that kind; off takes those away that the "
        "operator made.",
    )
    pod_monitor_labels: tuple[str, ...] = setting(
        (), "KEY=VALUE labels by which Prometheus selects PodMonitors, comma-separated."
    )
    pod_monitor_interval: str = setting(
        "", "Time between scrapes of engines, such as 15s; empty leaves it to Prometheus."
    )
    lease: str = setting(
        "",
        "NAMESPACE/NAME of the Lease that makes one of several operators the acting one; empty: "
        "there is only one.",
    )
    workers: int = setting(
        16, "InferenceServices that are worked on at once.", minimum=1, maximum=256
    )
    resync_s: float = setting(
        40.0,
        "Between two listings of all objects, which find what the watches have missed.",
        unit="s",
        minimum=1,
        maximum=600,
    )
    request_timeout_s: float = setting(
        15.0, "Bounds each request to the API server.", unit="s", minimum=0.1, maximum=60
    )
    status_listen: str = setting(
        "127.0.0.1:8081",
        "Address of /healthz, /readyz and /metrics; port 0 takes a free one, empty turns it off.",
    )
    log_json: bool = setting(False, "Log lines as JSON objects instead of text.")
    log_level: str = setting(
        "info",
        "Least severe level that is logged.",
        choices=("debug", "info", "warning", "error"),
    )

    def scopes(self) -> tuple[str | None, ...]:
        """Returns the namespaces to look at; None stands for all of them."""
        return self.namespaces or (None,)

    def gateway_key(self) -> Key | None:
        """Returns the gateways' Service, None when there is none; raises BAD_SETTING."""
        return _key("gateway_service", self.gateway_service)

    def lease_key(self) -> Key | None:
        """Returns the Lease, None when there is none; raises BAD_SETTING."""
        return _key("lease", self.lease)

    def installation(self) -> Installation:
        """Returns what all services have in common; raises BAD_SETTING."""
        gateway, interval = self.gateway_key(), self.pod_monitor_interval
        if not re.fullmatch(r"(\d+(ms|s|m))?", interval, re.ASCII):
            raise _bad("pod_monitor_interval", interval, "is no time such as 500ms, 15s or 1m")
        if not self.gateway_identity:
            raise _bad("gateway_identity", "", "engines would take calls from nobody")
        return Installation(
            engine_images={"cpu": self.engine_image_cpu, "cuda": self.engine_image_cuda},
            loader_image=self.loader_image,
            gateway_namespace=gateway.namespace if gateway else "",
            gateway_labels=_labels("gateway_labels", self.gateway_labels),
            gateway_identity=self.gateway_identity,
            monitoring_namespaces=self.monitoring_namespaces,
            network_policies=self.network_policies,
            pod_monitors=self.pod_monitors,
            pod_monitor_labels=_labels("pod_monitor_labels", self.pod_monitor_labels),
            pod_monitor_interval=interval,
            url=self.gateway_url,
        )


def _key(setting: str, value: str) -> Key | None:
    if not value:
        return None
    namespace, _, name = value.partition("/")
    if not (namespace and name) or "/" in name:
        raise _bad(setting, value, "is not NAMESPACE/NAME")
    return Key(namespace, name)


def _labels(setting: str, pairs: Iterable[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise _bad(setting, pair, "is not KEY=VALUE")
        labels[key] = value
    return labels


def _bad(key: str, value: str, reason: str) -> OctavoError:
    return OctavoError(BAD_SETTING, key=key, value=value, origin="operator", reason=reason)
