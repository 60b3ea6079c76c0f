"""The kinds of Kubernetes objects that the operator reads or writes, and the names of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from octavo.operator import names

Manifest = dict[str, Any]
"""A Kubernetes object, or a part of one, as its JSON has it. Never changed in place."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of namespaced objects."""

    api_version: str
    """`v1`, or group and version."""
    name: str
    plural: str

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version within the group."""
        return self.api_version.rpartition("/")[2]


INFERENCE_SERVICE: Final = Kind(names.API_VERSION, names.KIND, names.PLURAL)
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
SERVICE: Final = Kind("v1", "Service", "services")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
VOLUME_CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
JOB: Final = Kind("batch/v1", "Job", "jobs")
POD: Final = Kind("v1", "Pod", "pods")
POD_MONITOR: Final = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
SECRET: Final = Kind("v1", "Secret", "secrets")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
EVENT: Final = Kind("v1", "Event", "events")
ENDPOINT_SLICE: Final = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")

KINDS: Final = (
    INFERENCE_SERVICE, DEPLOYMENT, SERVICE, DISRUPTION_BUDGET, NETWORK_POLICY, VOLUME_CLAIM, JOB,
    POD, POD_MONITOR, SECRET, CONFIG_MAP, EVENT, ENDPOINT_SLICE, LEASE,
)  # fmt: skip
"""All of them."""

CHILD_KINDS: Final = (
    VOLUME_CLAIM, JOB, NETWORK_POLICY, SERVICE, DISRUPTION_BUDGET, CONFIG_MAP, DEPLOYMENT,
    POD_MONITOR,
)  # fmt: skip
"""Kinds of the children of an InferenceService, in the order in which they are written."""

PASSING_KINDS: Final = (VOLUME_CLAIM, JOB, NETWORK_POLICY, CONFIG_MAP, POD_MONITOR)
"""Kinds of children that may be unwanted while their InferenceService exists."""

OPTIONAL_KINDS: Final = (POD_MONITOR,)
"""Kinds that a cluster may lack."""


def object_of(kind: Kind, metadata: Manifest, **parts: object) -> Manifest:
    """Returns an object of a kind, with what it has besides metadata."""
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **parts}


def kind_of(manifest: Manifest) -> Kind:
    """Returns the kind of an object that names it; raises KeyError for one not listed here."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


_BY_NAME: Final = {(kind.api_version, kind.name): kind for kind in KINDS}
