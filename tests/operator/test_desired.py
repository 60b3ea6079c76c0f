from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given, settings
from tests.operator.building import INSTALLATION, from_hub, resource, service
from tests.operator.specs import NAMES, specs

from octavo.operator import desired, names
from octavo.operator.desired import Circumstances
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import Manifest
from octavo.operator.spec import InferenceService, parse


def given_circumstances(**more: Any) -> Circumstances:
    fields: dict[str, Any] = {
        "installation": INSTALLATION,
        "references": "",
        "kinds": frozenset(),
        "image": "octavo-engine:cpu",
        "strategy": Strategy(max_surge=1, max_unavailable=0),
        "replicas": 1,
    }
    return Circumstances(**fields | more)


def children(**spec: Any) -> list[Manifest]:
    return desired.children(service(**spec), given_circumstances())


def test_the_children_of_a_loaded_model_in_order() -> None:
    assert [(c["kind"], c["metadata"]["name"]) for c in children(**from_hub())] == [
        ("PersistentVolumeClaim", "llama-models"),
        ("Job", "llama-load-" + service(**from_hub()).spec.model.key[:8]),
        ("NetworkPolicy", "llama-engine"),
        ("NetworkPolicy", "llama-load"),
        ("Service", "llama-engine"),
        ("PodDisruptionBudget", "llama-engine"),
        ("Deployment", "llama-engine"),
    ]


def test_policies_can_be_left_out() -> None:
    installation = replace(INSTALLATION, network_policies=False)
    circumstances = given_circumstances(installation=installation)
    found = desired.children(service(**from_hub()), circumstances)
    with_policies = [c["kind"] for c in children(**from_hub())]
    assert [c["kind"] for c in found] == [k for k in with_policies if k != "NetworkPolicy"]


def test_a_model_that_is_there_already_needs_no_volume_and_no_job() -> None:
    kinds = {c["kind"] for c in children(model={"uri": "pvc://weights/llama"})}
    assert not kinds & {"PersistentVolumeClaim", "Job"}


def test_pinned_prefixes_are_there_before_the_engines_that_mount_them() -> None:
    found = children(cache={"pinnedPrefixes": [{"text": "Once"}]})
    assert [c["kind"] for c in found[-2:]] == ["ConfigMap", "Deployment"]
    name = found[-2]["metadata"]["name"]
    volumes = found[-1]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "pins", "configMap": {"name": name}} in volumes


def test_a_monitor_exists_where_its_kind_does() -> None:
    circumstances = given_circumstances(kinds=frozenset({"PodMonitor"}))
    kinds = [c["kind"] for c in desired.children(service(), circumstances)]
    assert kinds[-1] == "PodMonitor"
    assert "PodMonitor" not in [c["kind"] for c in children()]


@settings(max_examples=50)
@given(NAMES, specs())
def test_every_child_is_owned_labelled_and_named_validly(name: str, spec: dict[str, Any]) -> None:
    parsed = parse(resource(name, **spec))
    assert isinstance(parsed, InferenceService)
    for child in desired.children(parsed, given_circumstances()):
        meta = child["metadata"]
        (owner,) = meta["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (parsed.uid, True)
        assert meta["namespace"] == parsed.namespace
        assert meta["labels"][names.SERVICE_LABEL] == name
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "octavo-operator"
        assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", meta["name"])
        assert "finalizers" not in meta


@pytest.mark.parametrize(
    "spec",
    [
        from_hub(revision="main", secretRef={"name": "hub"}),
        {"model": {"uri": "pvc://weights/llama"}, "rollout": {"maxSurge": "25%"}},
        {
            "model": {"uri": "oci://registry/model:1"},
            "cache": {"host": "4Gi", "disk": {"size": "50Gi", "storageClassName": "fast"}},
        },
        {
            "model": {"uri": "file:///m"},
            "cache": {
                "host": "4Gi",
                "disk": {"size": "50Gi"},
                "pinnedPrefixes": [{"text": "Once"}],
            },
            "engine": {
                "device": "cuda",
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "resources": {"limits": {"memory": "8Gi", "cpu": 2}, "requests": {"cpu": "500m"}},
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                ],
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {"key": "a", "operator": "In", "values": ["b"]}
                                    ]
                                }
                            ]
                        }
                    }
                },
            },
        },
    ],
    ids=["hub", "claim", "image", "file"],
)
def test_kubernetes_schemas_take_every_object(spec: dict[str, Any]) -> None:
    for child in desired.children(service(**spec), given_circumstances(is_paused=True)):
        kubernetes_validate.validate(child, "1.34", strict=True)


def test_the_hash_of_the_content_leaves_the_number_of_replicas_out() -> None:
    def applied(replicas: int | None) -> str:
        found = desired.children(service(), given_circumstances(replicas=replicas))
        return str(found[-1]["metadata"]["annotations"][names.APPLIED])

    assert applied(1) == applied(5) == applied(None)


def test_the_hash_of_the_content_follows_everything_else() -> None:
    threads = {"options": {"threads": 1}}
    found = [
        *desired.children(service(), given_circumstances()),
        *desired.children(service(), given_circumstances(is_paused=True)),
        *desired.children(service(engine=threads), given_circumstances()),
    ]
    deployments = [c for c in found if c["kind"] == "Deployment"]
    assert len({c["metadata"]["annotations"][names.APPLIED] for c in deployments}) == 3
