"""The CustomResourceDefinition of InferenceService, made from the schema."""

from __future__ import annotations

from typing import Final

import msgspec

from octavo.operator import names, schema, schema_status
from octavo.operator.kinds import Manifest
from octavo.operator.structural import at_creation, fields

_COLUMNS: Final = (
    ("Model", "string", ".status.model", 0),
    ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", 0),
    ("Reason", "string", ".status.reason", 0),
    ("Replicas", "string", ".status.counts", 0),
    ("Hit Rate", "string", ".status.hitRate", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("URL", "string", ".status.url", 1),
)


def definition() -> Manifest:
    """Returns the CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "versions": [_version()],
        },
    }


def _version() -> Manifest:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _resource()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path}
            | ({"priority": priority} if priority else {})
            for name, kind, path, priority in _COLUMNS
        ],
    }


def _resource() -> Manifest:
    return fields(
        "A language model served by engines that the operator runs.",
        {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema.spec(),
            "status": schema_status.status(),
        },
        required=["spec"],
        # Only where it is made: a rule of the whole is judged at any write, and would keep one that
        # was stored before the rule from losing its finalizers.
        rules=[
            at_creation(
                f"self.metadata.name.size() <= {names.MAX_NAME}",
                f"metadata.name has at most {names.MAX_NAME} characters, so that the names of its "
                "pods fit",
            ),
            at_creation(
                f"self.metadata.name.matches('^{names.NAME_PATTERN}$')",
                "metadata.name must begin with a letter and have only a-z, 0-9 and - (its "
                "Service's name does)",
            ),
        ],
    )


def as_yaml() -> str:
    """Returns the definition as YAML."""
    return msgspec.yaml.encode(definition()).decode()
