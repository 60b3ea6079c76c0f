from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tests.operator.building import from_hub, resource, service
from tests.operator.specs import URIS, specs

from octavo.operator import names
from octavo.operator.observed import Reference
from octavo.operator.spec import InferenceService, Problem, parse, references


def problems(name: str = "llama", **spec: Any) -> list[str]:
    found = parse(resource(name, **spec))
    assert isinstance(found, list)
    return [str(problem) for problem in found]


@given(specs(uris=URIS))
def test_every_spec_that_the_schema_takes_is_valid(spec: dict[str, Any]) -> None:
    assert isinstance(parse(resource(**spec)), InferenceService)


def test_names_default_to_that_of_the_object() -> None:
    assert service().served_names == ("llama",)
    named = service(model={"uri": "pvc://weights/llama", "servedNames": ["a", "b"]})
    assert named.served_names == ("a", "b")


def test_a_definition_without_the_newest_fields_is_as_good() -> None:
    older = resource()
    del older["spec"]["rollout"]["noRoomSeconds"]
    assert parse(older) == service()


def test_the_dry_run_is_an_annotation() -> None:
    found = resource()
    assert not service().is_dry_run
    found["metadata"]["annotations"] = {names.DRY_RUN: "true"}
    parsed = parse(found)
    assert isinstance(parsed, InferenceService)
    assert parsed.is_dry_run


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"model": {"uri": "ftp://x"}}, "spec.model.uri: is none of hf://ORGANISATION/NAME"),
        ({"model": {"uri": "hf://org/x"}}, "spec.cache.volume: hf:// models need its size"),
        ({"replicas": 1, "autoscaling": {"maxReplicas": 2}},
         "spec.replicas: excludes spec.autoscaling; remove one"),
        ({"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
         "spec.autoscaling.minReplicas: is above maxReplicas"),
        ({"engine": {"resources": {"limits": {"memory": "20gi"}}}},
         "spec.engine.resources.limits.memory: '20gi' is no quantity such as 500m, 20Gi or 2"),
        ({"engine": {"resources": {"limits": {"memory": ""}}}},
         "spec.engine.resources.limits.memory: '' is no quantity such as 500m, 20Gi or 2"),
        ({"engine": {"options": {"kvBytes": "much"}}},
         "spec.engine.options.kvBytes: 'much' is no quantity such as 500m, 20Gi or 2"),
        ({"cache": {"host": "much"}},
         "spec.cache.host: 'much' is no quantity such as 500m, 20Gi or 2"),
        ({"cache": {"host": "0"}}, "spec.cache.host: has to be above 0"),
        ({"cache": {"host": 1, "disk": {"size": "0Gi"}}},
         "spec.cache.disk.size: has to be above 0"),
        ({"cache": {"disk": {"size": "1Gi"}}}, "spec.cache.disk: needs spec.cache.host"),
        ({"cache": {"host": "4Gi"}, "engine": {"resources": {"limits": {"memory": "4096Mi"}}}},
         "spec.cache.host: 4Gi leaves nothing of the 4096Mi of engine.resources.limits.memory"),
        ({"cache": {"host": "1Gi", "disk": {"size": "9Gi"}},
          "engine": {"resources": {"limits": {"ephemeral-storage": "8Gi"}}}},
         "spec.cache.disk.size: 9Gi leaves nothing of the 8Gi of engine.resources.limits.ephem"),
        ({"cache": {"pinnedPrefixes": [{"text": "x"}, {}]}},
         "spec.cache.pinnedPrefixes[1]: has either text or messages"),
        (from_hub() | {"cache": {"volume": {
            "size": 1, "loaderResources": {"limits": {"memory": "much"}}}}},
         "spec.cache.volume.loaderResources.limits.memory: 'much' is no quantity such as 500m, "),
        (from_hub() | {"cache": {"volume": {"size": "x"}}},
         "spec.cache.volume.size: 'x' is no quantity such as 500m, 20Gi or 2"),
        ({"engine": {"extraArgs": ["--listen=0.0.0.0:1"]}},
         "spec.engine.extraArgs: --listen=0.0.0.0:1 cannot be set: the operator does"),
        ({"engine": {"podLabels": {"serving.octavo.dev/service": "x"}}},
         "spec.engine.podLabels: serving.octavo.dev/service is the operator's own"),
        ({"rollout": {"maxSurge": "1"}},
         "spec.rollout.maxSurge: '1' is neither a number such as 1 nor a share such as 25%"),
        ({"rollout": {"maxSurge": -1}}, "spec.rollout.maxSurge: -1 is neither a number"),
        ({"rollout": {"maxSurge": 2**31}}, "spec.rollout.maxSurge: 2147483648 is neither"),
        ({"rollout": {"maxUnavailable": "101%"}}, "spec.rollout.maxUnavailable: '101%' is neither"),
        ({"rollout": {"maxSurge": "00%"}}, "spec.rollout: maxSurge and maxUnavailable are both 0"),
        ({"replicas": "two"}, "spec.replicas: expected `int | null`, got `str`"),
        ({"engine": {"env": [{"name": 5}]}}, "spec.engine.env[0].name: expected `str`, got `int`"),
        ({"model": {}}, "spec.model: object missing required field `uri`"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(spec: dict[str, Any], sentence: str) -> None:
    (found,) = problems(**spec)
    assert found.startswith(sentence)


def test_a_cache_within_the_limits_is_valid() -> None:
    limits = {"memory": "8Gi", "ephemeral-storage": "1Gi"}
    own = {"host": "4Gi", "disk": {"size": "50Gi", "storageClassName": "fast"}}
    found = service(cache=own, engine={"resources": {"limits": limits}})
    assert found.spec.cache.disk
    assert found.spec.cache.disk.storage_class_name == "fast"


@pytest.mark.parametrize("surge", [0, 2**31 - 1, "025%", "999%"])
def test_what_kubernetes_takes_as_a_number_of_pods_is_valid(surge: int | str) -> None:
    found = service(rollout={"maxSurge": surge, "maxUnavailable": "100%"})
    assert found.spec.rollout.max_surge == surge


def test_all_problems_are_told_at_once() -> None:
    engine = {"resources": {"limits": {"cpu": "x"}}, "extraArgs": ["--model"]}
    found = problems("9b", model={"uri": "x"}, engine=engine)
    assert [text.partition(":")[0] for text in found] == [
        "metadata.name", "spec.model.uri", "spec.engine.resources.limits.cpu",
        "spec.engine.extraArgs",
    ]  # fmt: skip


def test_a_missing_part_is_a_problem_and_no_exception() -> None:
    bare = resource()
    del bare["spec"]
    assert parse(bare) == [Problem(path="spec", sentence="object missing required field `model`")]


def test_references_are_those_of_model_and_variables() -> None:
    env = [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "C", "value": "1"},
    ]
    found = resource(model={"uri": "pvc://w/x", "secretRef": {"name": "hub"}}, engine={"env": env})
    assert references(found) == (
        Reference(kind="ConfigMap", name="c", key="k"),
        Reference(kind="Secret", name="hub"),
        Reference(kind="Secret", name="s", key="k"),
    )
    assert references(resource(replicas="x")) == ()
