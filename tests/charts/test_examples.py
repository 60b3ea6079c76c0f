from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.charts.rendering import ROOT, Manifest, notes

from octavo.operator import crd, spec

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def closed(schema: Any) -> Any:
    """Returns a structural schema as JSON schema that refuses what the API server would drop."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if found.pop("x-kubernetes-int-or-string", False):
        found["type"] = ["integer", "string"]
    if "properties" in found and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


def with_defaults(value: Any, schema: Manifest) -> Any:
    """Returns a value as the API server stores it."""
    if isinstance(value, list):
        return [with_defaults(each, schema.get("items", {})) for each in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    defaults = {key: inner["default"] for key, inner in properties.items() if "default" in inner}
    return {
        key: with_defaults(each, properties.get(key, {}))
        for key, each in (defaults | value).items()
    }


def validate(manifest: Manifest) -> None:
    (version,) = crd.definition()["spec"]["versions"]
    structural = version["schema"]["openAPIV3Schema"]
    schema = closed(structural)
    schema["properties"]["metadata"].pop("additionalProperties", None)
    jsonschema.Draft7Validator(schema).validate(manifest)
    stored = with_defaults(manifest, structural)
    stored["metadata"] |= {"namespace": "serving", "uid": "1"}
    assert isinstance(spec.parse(stored), spec.InferenceService)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid(path: Path) -> None:
    (manifest,) = yaml.safe_load_all(path.read_text("utf-8"))
    validate(manifest)


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} == {"smollm2-cpu", "cuda-hub", "autoscaled"}


def test_example_of_the_notes_is_valid() -> None:
    text = notes()
    found = re.search(r"<<'EOF'\n(.*?)EOF", text, re.DOTALL)
    assert found
    manifest = yaml.safe_load(found[1])
    validate(manifest)
    assert f'"model": "{manifest["metadata"]["name"]}"' in text


def test_a_typing_error_in_an_example_would_be_found() -> None:
    manifest = yaml.safe_load(EXAMPLES[0].read_text("utf-8"))
    manifest["spec"]["engine"]["imge"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imge"):
        validate(manifest)
