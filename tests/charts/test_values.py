from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.charts.matrix import MATRIX
from tests.charts.rendering import CHART, Values, refusal
from tools.chart_values import Json, Schema, read, schema

SCHEMA: Schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
DEFAULTS: Values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
VALUES = read((CHART / "values.yaml").read_text("utf-8"))
RENAMED: dict[str, str] = yaml.safe_load((CHART / "files" / "renamed.yaml").read_text("utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def sections(node: Json, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Returns every mapping among the defaults whose keys the chart fixes."""
    fixed = {value.path for value in VALUES}
    found = [path]
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, dict) and (*path, key) not in fixed:
                found += sections(value, (*path, key))
    return found


def nested(path: tuple[str, ...], value: object) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def test_schema_is_one_and_takes_the_defaults_and_the_matrix() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    for values in ({}, DEFAULTS, *MATRIX.values()):
        assert list(VALIDATOR.iter_errors(values)) == []


@pytest.mark.parametrize("path", sections(dict(DEFAULTS)), ids=".".join)
def test_typing_error_is_refused_at_every_level(path: tuple[str, ...]) -> None:
    (error,) = VALIDATOR.iter_errors(nested((*path, "typo"), True))
    assert "'typo' was unexpected" in error.message


@pytest.mark.parametrize(
    "values",
    [
        {"gateway": {"resources": {"limit": {}}}},
        {"gateway": {"tolerations": [{"keys": "x"}]}},
        {"gateway": {"affinity": {"podAfinity": {}}}},
        {"gateway": {"affinity": {"podAffinity": {"require": []}}}},
        {"gateway": {"extraEnv": [{"name": "X", "values": "1"}]}},
        {"gateway": {"extraVolumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
        {"gateway": {"securityContext": {"privilege": True}}},
        {"gateway": {"autoscaling": {"behavior": {"scaleup": {}}}}},
        {"gateway": {"replicas": "two"}},
        {"gateway": {"service": {"port": 0}}},
        {"gateway": {"service": {"type": "Public"}}},
        {"gateway": {"pdb": {"maxUnavailable": "101%"}}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"operator": {"image": {"digest": "sha256:abc"}}},
        {"valkey": {"maxMemory": "256Mi"}},
        {"rbac": {"namespaces": "red"}},
        {"commonLabels": {"number": 7}},
        {"monitoring": {"alerts": {"enabled": "yes"}}},
    ],
    ids=json.dumps,
)
def test_wrong_value_is_refused(values: Values) -> None:
    assert list(VALIDATOR.iter_errors(values)) != []


def test_helm_applies_the_schema() -> None:
    assert "additional properties 'typo' not allowed" in refusal({"gateway": {"typo": 1}})


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_other_name_is_refused_with_the_right_one(old: str, new: str) -> None:
    sentence = f"{old} is not a value of this chart: it is called {new}"
    assert sentence in refusal(nested(tuple(old.split(".")), {"enabled": True}))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"externalRedis": {"url": "redis://x"}}, "set valkey.enabled=false"),
        (
            {
                "valkey": {"enabled": False},
                "externalRedis": {"url": "redis://x", "urlSecret": {"name": "y"}},
            },
            "exclude each other",
        ),
        (
            {
                "valkey": {"enabled": False},
                "externalRedis": {"urlSecret": {"name": "y"}, "passwordSecret": {"name": "z"}},
            },
            "has its own password",
        ),
        (
            {"valkey": {"enabled": False}, "externalRedis": {"url": "redis://:secret@x"}},
            "holds a password",
        ),
        (
            {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}}},
            "is more than maxReplicas",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(values: Values, sentence: str) -> None:
    assert sentence in refusal(values)


def test_a_missing_comment_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a\.c is not documented"):
        read("a:\n  # -- Documented.\n  b: 1\n  c: 2\n")


def test_a_default_that_says_nothing_needs_a_hint() -> None:
    with pytest.raises(ValueError, match="needs @schema"):
        schema(read("# -- What.\na: []\n"), {})


@given(st.sampled_from([True, 7, 1.5, "text"]))
def test_type_of_a_value_is_that_of_its_default(default: bool | float | str) -> None:
    found = schema(read(f"# -- What.\na: {json.dumps(default)}\n"), {})
    validator = jsonschema.Draft7Validator(found)
    assert validator.is_valid({"a": default})
    assert not validator.is_valid({"a": [default]})


def test_documentation_may_have_several_lines_and_a_hint_narrows() -> None:
    (value,) = read("# -- One\n# -- two.\n# @schema {minimum: 3}\na: 5\n")
    assert (value.doc, value.key, value.default) == ("One two.", "a", 5)
    validator = jsonschema.Draft7Validator(schema([value], {}))
    assert not validator.is_valid({"a": 2})
