"""The defaults of each kind, as a real API server fills them in, and what it makes at creation.

As far as objects of this project meet them: the conformance tests compare.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from tests.sim.kube.api_kinds import SCHEMA
from tests.sim.kube.merging import without_nulls

from octavo.operator import quantity
from octavo.operator.cluster import RefusedError
from octavo.operator.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    JOB,
    LEASE,
    POD,
    SERVICE,
    VOLUME_CLAIM,
    Kind,
    Manifest,
)

_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_FALSE_IS_NONE: Final = (
    "hostIPC", "hostNetwork", "hostPID", "paused", "publishNotReadyAddresses", "readOnly", "stdin",
    "tty",
)  # fmt: skip
_VERBATIM: Final = ("annotations", "data", "labels", "matchLabels", "nodeSelector", "stringData")
_AMOUNTS: Final = ("capacity", "limits", "requests")


def defaulted(kind: Kind, manifest: Manifest, known: Manifest) -> Manifest:
    """Returns an object as the API server understands it: with its defaults, in its own words.

    Args:
        kind: of the object.
        manifest: the object as somebody wrote it.
        known: the object before; parts that are still the same need nothing.
    """
    is_open = kind != INFERENCE_SERVICE
    if is_open:
        manifest = {name: part for name, part in manifest.items() if part is not None}
    if kind in _SPECIFIED:
        manifest = {"spec": {}, **manifest}
    result: Manifest = {}
    for name, part in manifest.items():
        if name in known and part is known[name]:
            result[name] = part
        elif is_open or name == "metadata":
            part = _normal(without_nulls(part), name)
            part = _FILLED[kind](part) if name == "spec" and kind in _FILLED else part
            result |= {} if _is_nothing(name, part) else {name: part}
        else:
            result[name] = _by_schema(part, SCHEMA["properties"][name]) if name == "spec" else part
    if kind in _FIRST_STATUS:
        status = result.get("status", {})
        is_terse = kind in (DEPLOYMENT, JOB)  # they leave zeros out
        result["status"] = {n: v for n, v in status.items() if v != 0 or not is_terse}
    return result


def _by_schema(value: Any, schema: Manifest) -> Any:
    if isinstance(value, dict) and "properties" in schema:
        rules = schema["properties"]
        filled = {n: copy.deepcopy(s["default"]) for n, s in rules.items() if "default" in s}
        known = {
            n: v for n, v in value.items() if n in rules and (v is not None or n not in filled)
        }
        return {n: _by_schema(v, rules[n]) for n, v in (filled | known).items()}
    if isinstance(value, list) and "items" in schema:
        return [_by_schema(item, schema["items"]) for item in value]
    return value


def _normal(value: Any, name: str) -> Any:
    """Returns a value without empty fields, and with quantities in their shortest form."""
    if isinstance(value, dict):
        if name in _AMOUNTS:
            return {n: canonical(v) for n, v in value.items()}
        if name in _VERBATIM:
            return value
        pairs = ((n, _normal(v, n)) for n, v in value.items())
        return {n: v for n, v in pairs if not _is_nothing(n, v)}
    if isinstance(value, list):
        least = {"status": ""} if name == "conditions" else {}
        return [least | _normal(item, "") if least else _normal(item, "") for item in value]
    return canonical(value) if name == "sizeLimit" else value


def _is_nothing(name: str, value: Any) -> bool:
    if value is False:
        return name in _FALSE_IS_NONE
    if value == {}:
        return name in _VERBATIM or name in _AMOUNTS
    return value in ("", []) and name != "holderIdentity"


def _pod(spec: Manifest) -> Manifest:
    containers = [_container(c) for c in spec.get("containers", [])]
    named = spec.get("serviceAccountName")
    given = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
    }
    volumes = {"volumes": [_volume(v) for v in spec["volumes"]]} if "volumes" in spec else {}
    account = {"serviceAccount": named} if named else {}
    return given | spec | {"containers": containers} | volumes | account


def _volume(volume: Manifest) -> Manifest:
    if "configMap" in volume:
        return volume | {"configMap": {"defaultMode": 0o644} | volume["configMap"]}
    return volume


def _lone_pod(spec: Manifest) -> Manifest:
    spec = _pod({"enableServiceLinks": True} | spec)
    return spec | {"containers": [_requested(c) for c in spec["containers"]]}


def _container(container: Manifest) -> Manifest:
    image = container.get("image", "")
    is_moving = image.endswith(":latest") or (":" not in image.rpartition("/")[2])
    given: Manifest = {
        "imagePullPolicy": "Always" if is_moving and "@" not in image else "IfNotPresent",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    result = given | container
    if "ports" in result:
        result["ports"] = [{"protocol": "TCP"} | port for port in result["ports"]]
    for name in _PROBES:
        if name in result:
            result[name] = _probe(result[name])
    return result


def _requested(container: Manifest) -> Manifest:
    """A pod, unlike a template, requests what it may have at most."""
    resources = container["resources"]
    if limits := resources.get("limits"):
        resources = resources | {"requests": limits | resources.get("requests", {})}
    return container | {"resources": resources}


def _probe(probe: Manifest) -> Manifest:
    given: Manifest = {
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    result: Manifest = given | probe
    if "httpGet" in result:
        result["httpGet"] = {"path": "/", "scheme": "HTTP"} | result["httpGet"]
    return result


def _template(spec: Manifest) -> Manifest:
    template: Manifest = spec.get("template", {})
    return {"metadata": {}} | template | {"spec": _pod(template.get("spec", {}))}


def _deployment(spec: Manifest) -> Manifest:
    strategy: Manifest = {"type": "RollingUpdate"} | spec.get("strategy", {})
    if strategy["type"] == "RollingUpdate":
        rolling = {"maxUnavailable": "25%", "maxSurge": "25%"} | strategy.get("rollingUpdate", {})
        strategy["rollingUpdate"] = rolling
    given = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}
    return given | spec | {"template": _template(spec), "strategy": strategy}


def _job(spec: Manifest) -> Manifest:
    given: Manifest = {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "manualSelector": False,
    }
    return given | spec | {"template": _template(spec)}


def _service(spec: Manifest) -> Manifest:
    given = {"sessionAffinity": "None", "type": "ClusterIP", "internalTrafficPolicy": "Cluster"}
    ports = [
        {"protocol": "TCP", "targetPort": port["port"]} | port for port in spec.get("ports", [])
    ]
    return given | spec | ({"ports": ports} if ports else {})


_FILLED: Final[Mapping[Kind, Callable[[Manifest], Manifest]]] = {
    DEPLOYMENT: _deployment,
    JOB: _job,
    POD: _lone_pod,
    LEASE: lambda spec: spec,
    SERVICE: _service,
    VOLUME_CLAIM: lambda spec: {"volumeMode": "Filesystem"} | spec,
}


_SPECIFIED: Final = frozenset(_FILLED) | {INFERENCE_SERVICE}
"""Kinds that have a spec even if nobody wrote one."""


@lru_cache(maxsize=1000)
def canonical(value: Any) -> Any:
    """Returns a quantity as the API server writes it: 1024Mi as 1Gi, 0.5 as 500m, 2 as "2"."""
    number = quantity.parse(value)
    if number is None:
        raise RefusedError(f"quantities must match the regular expression: {value!r}")
    is_binary = str(value).endswith("i") and number >= 1024
    base, suffixes = (1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")) if is_binary else (
        1000, ("n", "u", "m", "", "k", "M", "G", "T", "P", "E"),
    )  # fmt: skip
    number /= Fraction(base) ** -suffixes.index("")
    index = 0
    while number and number % base == 0 and index < len(suffixes) - 1:
        number, index = number / base, index + 1
    rounded = -(-number.numerator // number.denominator)
    return f"{rounded}{suffixes[index]}" if number else "0"


def created(kind: Kind, manifest: Manifest, storage_class: str) -> Manifest:
    """Returns a new object with what the API server decides once."""
    metadata, spec = manifest["metadata"], manifest.get("spec", {})
    status = _FIRST_STATUS.get(kind)
    if status is not None:
        manifest = manifest | {"status": status}
    if kind == VOLUME_CLAIM:
        finalizers = [*metadata.get("finalizers", []), "kubernetes.io/pvc-protection"]
        return manifest | {
            "metadata": metadata | {"finalizers": finalizers},
            "spec": {"storageClassName": storage_class} | spec,
        }
    if kind == JOB:
        return manifest | {"spec": _selecting(metadata, spec)}
    if kind == SERVICE:
        address = spec.get("clusterIP", "10.96.0.2")
        families = {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}
        addresses = {"clusterIP": address, "clusterIPs": [address]}
        return manifest | {"spec": families | addresses | spec}
    return manifest


_FIRST_STATUS: Final[Mapping[Kind, Manifest]] = {
    DEPLOYMENT: {},
    JOB: {},
    POD: {"phase": "Pending", "qosClass": "BestEffort"},
    SERVICE: {"loadBalancer": {}},
    VOLUME_CLAIM: {"phase": "Pending"},
    DISRUPTION_BUDGET: {
        "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
    },
}  # fmt: skip


def _selecting(metadata: Manifest, spec: Manifest) -> Manifest:
    """Returns the spec of a Job whose pods are told apart from all others."""
    uid, name, prefix = metadata["uid"], metadata["name"], "batch.kubernetes.io/"
    ours = {
        f"{prefix}controller-uid": uid, f"{prefix}job-name": name,
        "controller-uid": uid, "job-name": name,
    }  # fmt: skip
    template = spec["template"]
    labels = template["metadata"].get("labels", {}) | ours
    return spec | {
        "selector": {"matchLabels": {f"{prefix}controller-uid": uid}},
        "template": template | {"metadata": template["metadata"] | {"labels": labels}},
    }
