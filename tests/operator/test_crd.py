from __future__ import annotations

import json

import kubernetes_validate
import yaml

from octavo.operator import crd, schema_status
from octavo.operator.kinds import Manifest

VERSION: Manifest = crd.definition()["spec"]["versions"][0]


def test_it_is_a_valid_definition() -> None:
    kubernetes_validate.validate(crd.definition(), "1.34", strict=True)


def test_its_names_are_the_contract() -> None:
    found = crd.definition()
    assert found["metadata"]["name"] == "inferenceservices.serving.octavo.dev"
    assert found["spec"]["names"]["shortNames"] == ["ois"]
    assert found["spec"]["names"]["categories"] == ["octavo"]
    assert found["spec"]["scope"] == "Namespaced"
    assert (VERSION["name"], VERSION["served"], VERSION["storage"]) == ("v1alpha1", True, True)


def test_yaml_and_value_are_the_same() -> None:
    assert yaml.safe_load(crd.as_yaml()) == crd.definition()
    assert yaml.safe_load(crd.as_yaml()) == json.loads(json.dumps(crd.definition()))


def test_columns_show_fields_that_exist() -> None:
    columns = VERSION["additionalPrinterColumns"]
    assert [column["name"] for column in columns] == [
        "Model", "Ready", "Reason", "Replicas", "Hit Rate", "Age", "URL",
    ]  # fmt: skip
    assert [c["name"] for c in columns if c.get("priority")] == ["URL"]
    status = schema_status.status()["properties"]
    for column in columns:
        parts = column["jsonPath"].split(".")
        if parts[1] == "status" and "[" not in column["jsonPath"]:
            assert parts[2] in status


def test_it_can_be_scaled_with_a_selector() -> None:
    assert VERSION["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    assert VERSION["subresources"]["status"] == {}


def test_it_stays_small_enough_to_be_applied() -> None:
    # Client-side apply copies it into an annotation, which has this bound.
    assert len(json.dumps(crd.definition())) < 200_000
