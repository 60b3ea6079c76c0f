from __future__ import annotations

from typing import Any

import pytest
from tests.operator.building import from_hub, service
from tests.operator.engine_pods import pod

from octavo.operator import failures, names, shared_volume
from octavo.operator.failures import STUCK_CREATING, Failure
from octavo.operator.kinds import Manifest

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
STUCK = Failure(reason=failures.NOT_CREATED, message=STUCK_CREATING)
SHARED = {"cache": {"volume": {"size": "20Gi", "accessMode": "ReadWriteMany"}}}


def affinity(affinity: Manifest | None = None, **spec: Any) -> Manifest:
    return shared_volume.affinity(
        service(**(from_hub() | {"engine": {"affinity": affinity or {}}} | spec))
    )


def placed(node: str, **more: Any) -> Manifest:
    """A pod with the service's volume."""
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": "llama-models"}}
    return pod(f"on-{node}", spec={"nodeName": node, "volumes": [volume]}, **more)


def test_a_loader_goes_where_the_volume_is_and_the_first_one_anywhere() -> None:
    (term,) = affinity()["podAffinity"][REQUIRED]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    meant = term["labelSelector"]["matchLabels"].items()
    assert meant <= names.labels("llama", names.ENGINE).items()
    assert meant <= names.labels("llama", names.LOADER).items(), "or none could ever be the first"
    assert not meant <= names.labels("other", names.ENGINE).items()


def test_a_volume_that_many_nodes_can_have_binds_nobody() -> None:
    own = {"nodeAffinity": {"x": 1}}
    assert affinity(**SHARED) == {}
    assert affinity(own, **SHARED) == own


def test_the_affinity_of_the_engines_stays() -> None:
    wish = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}
    own = {"nodeAffinity": {"x": 1}, "podAffinity": {PREFERRED: [wish]}}
    found = affinity(own)
    assert found["nodeAffinity"] == {"x": 1}
    assert found["podAffinity"][PREFERRED] == [wish]
    assert len(found["podAffinity"][REQUIRED]) == 1


def test_beside_terms_of_the_user_s_it_is_a_wish() -> None:
    theirs = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "cache"}}}
    found = affinity({"podAffinity": {REQUIRED: [theirs]}})["podAffinity"]
    assert found[REQUIRED] == [theirs]
    (wish,) = found[PREFERRED]
    assert wish["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


def test_beside_engines_that_keep_apart_it_is_a_wish() -> None:
    """Or no node would do: where an engine is the loader had to be and must not be."""
    own = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "kubernetes.io/hostname"}]}}
    found = affinity(own)
    assert found["podAntiAffinity"] == own["podAntiAffinity"]
    assert REQUIRED not in found["podAffinity"]
    assert len(found["podAffinity"][PREFERRED]) == 1


@pytest.mark.parametrize("component", [names.ENGINE, names.LOADER])
def test_pods_on_two_nodes_that_wait_are_told_why(component: str) -> None:
    found = [placed("a"), placed("b", component=component)]
    told = shared_volume.conflict(service(**from_hub()), found, STUCK)
    assert told is not None
    assert told.reason == "VolumeOnOtherNode"
    assert "the volume is ReadWriteOnce and pods that need it were placed on a, b" in told.message


@pytest.mark.parametrize(
    ("spec", "found", "failure"),
    [
        (from_hub(), [placed("a"), placed("b", phase="Succeeded")], STUCK),
        (from_hub(), [placed("a"), pod("x", spec={"nodeName": "b"})], STUCK),
        (from_hub(), [placed("a"), placed("a")], STUCK),
        (from_hub() | SHARED, [placed("a"), placed("b")], STUCK),
        ({}, [placed("a"), placed("b")], STUCK),
        (
            from_hub(),
            [placed("a"), placed("b")],
            Failure(reason=failures.NOT_CREATED, message='secret "x" not found'),
        ),
    ],
    ids=["ended", "without it", "one node", "shared", "not loaded", "another reason"],
)
def test_what_has_another_reason_is_not_laid_to_the_volume(
    spec: dict[str, Any], found: list[Manifest], failure: Failure
) -> None:
    assert shared_volume.conflict(service(**spec), found, failure) is None
