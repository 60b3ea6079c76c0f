"""Schemas of the parts of a pod that users may set: closed, unlike Kubernetes' own."""

from __future__ import annotations

from typing import Final

from octavo.operator import names
from octavo.operator.kinds import Manifest
from octavo.operator.structural import (
    DNS_NAME,
    LABEL_VALUE,
    amount,
    array,
    choice,
    fields,
    rule,
    table,
    text,
    whole,
)

_KEY_PATTERN: Final = f"({DNS_NAME}/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"


def key(description: str = "") -> Manifest:
    """The key of a label."""
    return text(description, pattern=_KEY_PATTERN, most=317)


def label_value(description: str = "") -> Manifest:
    """The value of a label."""
    return text(description, pattern=LABEL_VALUE, most=63)


def name(description: str = "") -> Manifest:
    """The name of an object in the same namespace."""
    return text(description, pattern=DNS_NAME, most=253, least=1)


def named(description: str) -> Manifest:
    """A reference to an object in the same namespace."""
    return fields(description, {"name": name()}, required=["name"])


def _requirement(operators: list[str]) -> Manifest:
    return fields(
        "",
        {
            "key": key(),
            "operator": choice("", *operators),
            "values": array("", label_value(), most=64),
        },
        required=["key", "operator"],
    )


def _label_selector() -> Manifest:
    operators = ["In", "NotIn", "Exists", "DoesNotExist"]
    return fields(
        "Which pods are meant.",
        {
            "matchLabels": table("", label_value(), most=32),
            "matchExpressions": array("", _requirement(operators), most=16),
        },
    )


def _node_terms() -> Manifest:
    operators = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    return fields(
        "",
        {
            "matchExpressions": array("", _requirement(operators), most=16),
            "matchFields": array("", _requirement(operators), most=4),
        },
    )


def _node_affinity() -> Manifest:
    terms = array("One of them has to fit.", _node_terms(), most=16)
    preferred = fields(
        "",
        {"weight": whole("", least=1, most=100), "preference": _node_terms()},
        required=["weight", "preference"],
    )
    return fields(
        "Which nodes.",
        {
            "requiredDuringSchedulingIgnoredDuringExecution": fields(
                "", {"nodeSelectorTerms": terms}, required=["nodeSelectorTerms"]
            ),
            "preferredDuringSchedulingIgnoredDuringExecution": array("", preferred, most=16),
        },
    )


def _pod_affinity(description: str) -> Manifest:
    term = fields(
        "",
        {
            "labelSelector": _label_selector(),
            "namespaceSelector": _label_selector(),
            "namespaces": array("", name(), most=16),
            "topologyKey": key(),
        },
        required=["topologyKey"],
    )
    weighted = fields(
        "",
        {"weight": whole("", least=1, most=100), "podAffinityTerm": term},
        required=["weight", "podAffinityTerm"],
    )
    return fields(
        description,
        {
            "requiredDuringSchedulingIgnoredDuringExecution": array("", term, most=8),
            "preferredDuringSchedulingIgnoredDuringExecution": array("", weighted, most=8),
        },
    )


def affinity() -> Manifest:
    """Where pods want to be."""
    return fields(
        "Where pods must or want to run, as in a pod.",
        {
            "nodeAffinity": _node_affinity(),
            "podAffinity": _pod_affinity("Near which pods."),
            "podAntiAffinity": _pod_affinity("Away from which pods."),
        },
    )


def tolerations() -> Manifest:
    """Which taints do not matter."""
    toleration = fields(
        "",
        {
            "key": key(),
            "operator": choice("", "Exists", "Equal"),
            "value": label_value(),
            "effect": choice("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
            "tolerationSeconds": whole("", most=2**31),
        },
    )
    return array("Taints of nodes that do not keep engines away.", toleration, most=32)


def topology_spread() -> Manifest:
    """How pods spread."""
    constraint = fields(
        "",
        {
            "maxSkew": whole("Largest difference in engines.", least=1, most=1000),
            "topologyKey": key("Label of nodes, such as topology.kubernetes.io/zone."),
            "whenUnsatisfiable": choice("", "DoNotSchedule", "ScheduleAnyway"),
        },
        required=["maxSkew", "topologyKey", "whenUnsatisfiable"],
    )
    return array(
        "How this service's engines spread over nodes.",
        constraint,
        most=8,
        keys=["topologyKey", "whenUnsatisfiable"],
    )


def resources(description: str) -> Manifest:
    """What a container needs and gets at most."""
    return fields(
        description,
        {
            "limits": table("", amount(), most=16),
            "requests": table("", amount(), most=16),
        },
    )


def environment() -> Manifest:
    """Variables of a container."""
    taken = {"name": name(), "key": text(pattern="[A-Za-z0-9._-]+", most=253, least=1)}
    secret = fields("A key of a Secret.", taken, required=["name", "key"])
    config = fields("A key of a ConfigMap.", taken, required=["name", "key"])
    source = fields(
        "Where the value comes from; a change of it restarts the engines.",
        {"secretKeyRef": secret, "configMapKeyRef": config},
        rules=[
            rule(
                "has(self.secretKeyRef) != has(self.configMapKeyRef)",
                "valueFrom takes either secretKeyRef or configMapKeyRef",
            )
        ],
    )
    variable = fields(
        "",
        {
            "name": text(pattern="[A-Za-z_.-][A-Za-z0-9_.-]*", most=128, least=1),
            "value": text(most=4096),
            "valueFrom": source,
        },
        required=["name"],
        rules=[
            rule(
                "!(has(self.value) && has(self.valueFrom))",
                "a variable has either value or valueFrom",
            )
        ],
    )
    return array("Variables of the engine, as in a pod.", variable, most=64, keys=["name"])


def security_context() -> Manifest:
    """Users and groups of a pod; all else is fixed by the restricted Pod Security Standard."""
    some_id = whole("", least=1, most=2**31 - 1)
    return fields(
        "Users and groups of the pods; all else is as the restricted Pod Security Standard wants.",
        {
            "runAsUser": some_id,
            "runAsGroup": some_id,
            "fsGroup": some_id,
            "supplementalGroups": array("", some_id, most=16),
        },
    )


def pod_metadata(what: str, values: Manifest) -> Manifest:
    """Labels or annotations that users add to pods."""
    taken = " || ".join(f"k.startsWith('{prefix}')" for prefix in names.RESERVED_PREFIXES)
    return table(
        f"{what} of the pods besides ours; a change restarts the engines.",
        values,
        most=32,
        rules=[
            rule(
                f"!self.exists(k, {taken})",
                f"keys that begin with {' or '.join(names.RESERVED_PREFIXES)} are ours",
            )
        ],
    )
