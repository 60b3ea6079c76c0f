"""Names, labels and annotations of all that the operator writes. They are a contract: never change.

A service's name has at most MAX_NAME characters and is a DNS-1035 label, so that each name and
label value made from it here is valid whatever it is.
"""

from __future__ import annotations

import re
from typing import Final

GROUP: Final = "serving.octavo.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
SHORT_NAME: Final = "ois"
CATEGORY: Final = "octavo"

MAX_NAME: Final = 40
NAME_PATTERN: Final = "[a-z]([a-z0-9-]*[a-z0-9])?"

SERVICE_LABEL: Final = f"{GROUP}/service"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
ENGINE: Final = "engine"
LOADER: Final = "loader"
RESERVED_PREFIXES: Final = (f"{GROUP}/", "app.kubernetes.io/")
"""Beginnings of label and annotation keys that users may not set on pods."""

APPLIED: Final = f"{GROUP}/applied"
"""Annotation of each child: hash of what we applied, so that a removed field is noticed."""
IMAGE: Final = f"{GROUP}/image"
"""Annotation of Deployments: the engine's image as we applied it."""
TEMPLATE: Final = f"{GROUP}/template"
"""Annotation of pods: hash of what they were made from, without an image that is our default."""
REFERENCES: Final = f"{GROUP}/references"
"""Annotation of pods: hash of the data of the Secrets and ConfigMaps that they take values from."""
CLAIM: Final = f"{GROUP}/volume-claim"
"""Annotation of Jobs: UID of the volume claim that they load into, where there was one already."""
DRY_RUN: Final = f"{GROUP}/dry-run"
"""Annotation of an InferenceService: "true" writes to its status what would be done instead."""

ROUTABLE_GATE: Final = f"{GROUP}/Routable"
"""Condition type of pods, and readiness gate of engines."""

GRPC_PORT: Final = 50051
"""Of engines, with TLS or without."""
GRPCS_PORT: Final = 50052
"""Of their Service only, which has no two ports of one number. Nobody listens there."""
STATUS_PORT: Final = 9091


def problem_of(name: str) -> str:
    """Returns why a service cannot have that name; empty when it can."""
    if len(name) > MAX_NAME:
        return f"the name has {len(name)} characters; at most {MAX_NAME} leave room for its pods'"
    if not re.fullmatch(NAME_PATTERN, name):
        return "the name must begin with a letter and have only a-z, 0-9 and -"
    return ""


def engine(service: str) -> str:
    """Returns the name of the Deployment, Service, budget, policy and monitor of a service."""
    return f"{service}-engine"


def models(service: str) -> str:
    """Returns the name of the volume claim of a service."""
    return f"{service}-models"


def load(service: str) -> str:
    """Returns the name of the network policy of a service's loaders."""
    return f"{service}-load"


def load_job(service: str, key: str) -> str:
    """Returns the name of the Job that loads the model with that key."""
    return f"{service}-load-{key[:8]}"


def pins(service: str, key: str) -> str:
    """Returns the name of the ConfigMap with pinned prefixes that have that key, of 16 digits."""
    return f"{service}-pins-{key}"


def labels(service: str, component: str) -> dict[str, str]:
    """Returns the labels of a child."""
    return {
        "app.kubernetes.io/name": "octavo",
        COMPONENT_LABEL: component,
        "app.kubernetes.io/instance": service,
        "app.kubernetes.io/managed-by": "octavo-operator",
        SERVICE_LABEL: service,
    }


def selector(service: str, component: str = ENGINE) -> dict[str, str]:
    """Returns the labels that select the pods of a service; they are immutable."""
    return {SERVICE_LABEL: service, COMPONENT_LABEL: component}


def selector_text(service: str) -> str:
    """Returns the selector of the engines as the scale subresource has it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector(service).items()))
