"""Specs of InferenceServices for properties: valid ones, as users may write them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from octavo.operator import model_uri, names, options
from octavo.operator.kinds import Manifest
from octavo.operator.observed import Reference
from octavo.operator.schema_cache import ROLES

SAFE = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"))
TEXT = st.text(SAFE, min_size=1, max_size=20)

NAMES = st.from_regex(f"({names.NAME_PATTERN})", fullmatch=True).filter(
    lambda name: len(name) <= names.MAX_NAME
)

URIS = st.one_of(
    [st.from_regex(pattern, fullmatch=True) for pattern in model_uri.PATTERNS.values()]
).filter(lambda uri: len(uri) <= model_uri.MAX_LENGTH)

FEW_URIS = st.sampled_from(
    ["hf://org/a", "hf://org/b/file.gguf", "s3://bucket/a", "pvc://weights/a", "file:///m/a.gguf"]
)

DATA = {
    Reference(kind="Secret", name="hub"): "11",
    Reference(kind="Secret", name="keys", key="one"): "22",
    Reference(kind="ConfigMap", name="settings", key="two"): "33",
    Reference(kind="Secret", name="pair", key="ca.crt"): "44",
    Reference(kind="Secret", name="pair", key="tls.crt"): "55",
    Reference(kind="Secret", name="pair", key="tls.key"): "66",
}
"""References that a drawn spec may have, and the hash of what is there."""

_VARIABLE: list[dict[str, Any]] = [
    {"name": "A", "value": "1"},
    {"name": "B"},
    {"name": "K", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "one"}}},
    {"name": "S", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "two"}}},
]


def _value(schema: Manifest) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("type") == "integer":
        return st.integers(schema["minimum"], schema["maximum"])
    if schema.get("type") == "number":
        return st.floats(float(schema["minimum"]), float(schema["maximum"])) | st.just(
            schema["minimum"]
        )
    if schema.get("type") == "boolean":
        return st.booleans()
    return st.sampled_from(["4Gi", "1500m", 1024, "1e9", ".5G"])


OPTIONS = st.fixed_dictionaries(
    {}, optional={option.field: _value(option.schema) for option in options.OPTIONS}
)

_VARIABLES = st.lists(
    st.sampled_from(_VARIABLE), unique_by=lambda variable: str(variable["name"]), max_size=3
)

ENGINES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "device": st.sampled_from(["cpu", "cuda"]),
        "image": st.sampled_from(["mine:1", "mine:2"]),
        "tls": st.just({"secretName": "pair"}),
        "options": OPTIONS,
        "extraArgs": st.lists(st.sampled_from(["--prefix-caching", "--threads=3"]), max_size=2),
        "env": _VARIABLES,
        "resources": st.sampled_from(
            [{"limits": {"memory": "2Gi", "cpu": 2}}, {"requests": {"cpu": "1000m"}}, {}]
        ),
        "nodeSelector": st.sampled_from([{"zone": "a"}, {"zone": "b"}]),
        "podLabels": st.sampled_from([{"team": "x"}, {"team": "y"}]),
        "podAnnotations": st.sampled_from([{"note": "x"}, {"note": "y"}]),
        "priorityClassName": st.sampled_from(["high", "low"]),
    },
)


_MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(ROLES), "content": TEXT})

PREFIXES: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda prefix, more: prefix | more,
    st.fixed_dictionaries({"text": TEXT})
    | st.fixed_dictionaries({"messages": st.lists(_MESSAGES, min_size=1, max_size=3)}),
    st.fixed_dictionaries(
        {}, optional={"cacheSalt": st.text(SAFE, max_size=5), "ttlSeconds": st.integers(1, 9)}
    ),
)

_TIERS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"host": st.sampled_from(["1Gi", 2**20, "1.5G"])},
    optional={
        "disk": st.fixed_dictionaries(
            {"size": st.sampled_from(["50Gi", 10**9])},
            optional={"storageClassName": st.sampled_from(["fast", "slow"])},
        )
    },
)

CACHES: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda tiers, pins: tiers | pins,
    st.just({}) | _TIERS,
    st.fixed_dictionaries({}, optional={"pinnedPrefixes": st.lists(PREFIXES, max_size=3)}),
)
"""What engines keep of prompts; nothing, often."""


@st.composite
def specs(draw: st.DrawFn, uris: st.SearchStrategy[str] = FEW_URIS) -> dict[str, Any]:
    """Draws a spec, without the defaults."""
    uri = draw(uris)
    model: dict[str, Any] = {"uri": uri}
    if draw(st.booleans()):
        model["secretRef"] = {"name": "hub"}
    spec: dict[str, Any] = {"model": model, "engine": draw(ENGINES), "cache": draw(CACHES)}
    if uri.startswith(("hf://", "s3://")):
        given = draw(st.sampled_from([{}, {"loaderResources": {"limits": {"memory": "1Gi"}}}]))
        spec["cache"]["volume"] = {"size": draw(st.sampled_from(["20Gi", "30Gi", 10**10]))} | given
        if draw(st.booleans()):
            model["revision"] = draw(st.sampled_from(["main", "v1"]))
    if spec["cache"].keys() & {"disk", "pinnedPrefixes"}:
        spec["engine"].get("options", {}).pop("prefixCaching", None)
    if (replicas := draw(st.none() | st.integers(0, 3))) is not None:
        spec["replicas"] = replicas
    if draw(st.booleans()):
        spec["rollout"] = {"maxSurge": draw(st.integers(0, 2)), "maxUnavailable": 1}
    return spec
