from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from tests.operator.specs import URIS, specs
from tests.operator.structural_check import problems_of

from octavo.operator import model_uri, schema, schema_status
from octavo.operator.kinds import Manifest
from octavo.operator.options import OPTIONS


def walk(node: Manifest, path: str = "") -> Iterator[tuple[str, Manifest]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if isinstance(node.get(part), dict):
            yield from walk(node[part], f"{path}[]")


NODES = [*walk(schema.spec(), "spec"), *walk(schema_status.status(), "status")]


@pytest.mark.parametrize(("path", "node"), NODES, ids=[path for path, _ in NODES])
def test_every_level_is_closed_and_bounded(path: str, node: Manifest) -> None:
    assert "x-kubernetes-preserve-unknown-fields" not in node
    kind = node.get("type")
    if kind == "string":
        assert "maxLength" in node or "enum" in node
    if kind == "array":
        assert "maxItems" in node
        assert "x-kubernetes-list-type" in node
    if kind == "object":
        assert "properties" in node or "maxProperties" in node
    if kind in ("integer", "number"):
        assert "minimum" in node
        assert "maximum" in node
    if kind is None:
        assert node["x-kubernetes-int-or-string"] is True
    if "pattern" in node:
        re.compile(node["pattern"])


def test_what_users_write_is_described() -> None:
    bare = [p for p, n in walk(schema.spec(), "spec") if p.count(".") <= 2 and "[" not in p
            and not n.get("description")]  # fmt: skip
    assert bare == []


def test_replicas_have_no_default_because_none_is_not_zero() -> None:
    assert "default" not in schema.spec()["properties"]["replicas"]


def test_options_have_no_default_because_the_engine_has() -> None:
    assert [option.field for option in OPTIONS if "default" in option.schema] == []


@given(specs(uris=URIS))
def test_drawn_specs_fit_the_schema(spec: dict[str, Any]) -> None:
    assert problems_of(spec, schema.spec()) == []


def test_the_uri_s_rule_has_all_schemes() -> None:
    (rule,) = schema.spec()["properties"]["model"]["properties"]["uri"]["x-kubernetes-validations"]
    for scheme, form in model_uri.FORMS.items():
        assert f"{scheme}://" in rule["rule"]
        assert form in rule["message"]


def test_every_rule_says_what_is_wrong() -> None:
    rules = [r for _, n in NODES for r in n.get("x-kubernetes-validations", ())]
    assert len(rules) >= 12
    assert [r for r in rules if len(r["message"]) < 20] == []
