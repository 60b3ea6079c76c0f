from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.operator.building import INSTALLATION, UID, resource

from octavo.operator import names, writes
from octavo.operator.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    NETWORK_POLICY,
    SERVICE,
    VOLUME_CLAIM,
    Kind,
    Manifest,
    object_of,
)
from octavo.operator.observed import Observed
from octavo.operator.plan import Apply, Delete, Scale
from octavo.operator.writes import Changes, changes


def child(kind: str = "Service", name: str = "x", *, applied: str = "h", **spec: Any) -> Manifest:
    versions = {
        "Service": "v1",
        "Deployment": "apps/v1",
        "Job": "batch/v1",
        "NetworkPolicy": "networking.k8s.io/v1",
    }
    return {
        "apiVersion": versions[kind],
        "kind": kind,
        "metadata": {"name": name, "annotations": {names.APPLIED: applied}},
        "spec": spec,
    }


def there(wanted: Manifest, *, owner: str = UID, **meta: Any) -> Manifest:
    found = copy.deepcopy(wanted)
    owners = [{"uid": owner, "controller": True}]
    found["metadata"] |= {"uid": "u1", "resourceVersion": "7", "ownerReferences": owners} | meta
    return found


def found_changes(children: list[Manifest], wanted: list[Manifest], **more: Any) -> Changes:
    observed = Observed(resource=resource(), installation=INSTALLATION, children=tuple(children))
    return changes(observed, wanted, **more)


def test_what_is_missing_is_made() -> None:
    wanted = child(a=1)
    found = found_changes([], [wanted])
    assert found.writes == (Apply(manifest=wanted, creates=True),)
    assert found.paths == ("Service x: is made",)


def test_what_is_so_already_is_not_written() -> None:
    wanted = child(a=1)
    present = there(wanted)
    present["spec"]["defaulted"] = True
    assert found_changes([present], [wanted]).writes == ()


def test_what_differs_is_written_onto_the_very_object() -> None:
    found = found_changes([there(child(a=1))], [child(a=2, applied="h2")])
    (write,) = found.writes
    assert isinstance(write, Apply)
    assert not write.creates
    assert write.manifest["metadata"]["uid"] == "u1"
    assert "resourceVersion" not in write.manifest["metadata"]
    assert found.paths == ("Service x: spec.a",)


def test_a_field_that_is_no_longer_wanted_is_noticed() -> None:
    found = found_changes([there(child(a=1, b=2))], [child(a=1, applied="h2")])
    assert len(found.writes) == 1
    assert found.paths == ("Service x: fields go",)


def test_a_guarded_object_is_written_only_as_it_was_observed() -> None:
    (write,) = found_changes(
        [there(child(a=1))],
        [child(a=2)],
        guarded=frozenset({SERVICE}),
    ).writes
    assert isinstance(write, Apply)
    assert write.manifest["metadata"]["resourceVersion"] == "7"


def test_an_object_of_somebody_else_is_left_alone() -> None:
    found = found_changes([there(child(a=1), owner="other")], [child(a=2)])
    assert (found.writes, found.taken) == ((), ("Service x",))


def test_an_object_that_is_being_deleted_is_waited_for() -> None:
    found = found_changes([there(child(a=1), deletionTimestamp="now")], [child(a=2)])
    assert (found.writes, found.taken) == ((), ())


def test_what_is_no_longer_wanted_goes_last_and_only_if_it_is_ours() -> None:
    def policy(name: str, **more: Any) -> Manifest:
        return there(child("NetworkPolicy", name), **more)

    mine, foreign = policy("mine"), policy("foreign", owner="other")
    going = policy("going", deletionTimestamp="now")
    found = found_changes([mine, foreign, going], [child(name="new")])
    assert [type(write) for write in found.writes] == [Apply, Delete]
    assert found.writes[1] == Delete(
        kind=NETWORK_POLICY, name="mine", uid="u1", resource_version="7"
    )


@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_a_copy_of_what_never_goes_is_its_maker_s(kind: str) -> None:
    """A copy names us as its owner too, and the roles do not let us delete that kind."""
    assert found_changes([there(child(kind, "copy"))], []).writes == ()


def mounting(volume: Manifest) -> Manifest:
    spec = {"volumes": [{"name": "v", **volume}]}
    return there(child("Deployment", template={"spec": spec}))


@pytest.mark.parametrize(
    ("kind", "volume"),
    [
        (CONFIG_MAP, {"configMap": {"name": "mine"}}),
        (VOLUME_CLAIM, {"persistentVolumeClaim": {"claimName": "mine"}}),
    ],
)
def test_what_pods_mount_goes_when_none_does(kind: Kind, volume: Manifest) -> None:
    mine = there(object_of(kind, {"name": "mine"}))
    deployment, pod = mounting(volume), mounting(volume)["spec"]["template"]
    (gone,) = found_changes([mine], []).writes
    assert gone == Delete(kind=kind, name="mine", uid="u1", resource_version="7")
    assert found_changes([mine, deployment], [deployment]).writes == ()
    observed = Observed(
        resource=resource(), installation=INSTALLATION, children=(mine,), pods=(pod,)
    )
    assert changes(observed, []).writes == ()


def test_a_job_is_never_changed_but_made_anew_unless_it_has_ended() -> None:
    present = there(child("Job", a=1))
    (write,) = found_changes([present], [child("Job", a=2, applied="h2")]).writes
    assert write == Delete(kind=JOB, name="x", uid="u1", resource_version="7")
    present["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert found_changes([present], [child("Job", a=2, applied="h2")]).writes == ()


@pytest.mark.parametrize("status", [{}, {"conditions": [{"type": "Complete", "status": "True"}]}])
def test_a_job_whose_volume_is_lost_is_made_anew_also_when_it_has_ended(status: Manifest) -> None:
    wanted = child("Job", a=1)
    present = there(wanted) | {"status": status}
    present["metadata"]["annotations"] = wanted["metadata"]["annotations"] | {names.CLAIM: "c0"}
    volume = claim("20Gi")
    volume["metadata"]["name"] = "llama-models"
    assert found_changes([there(volume, uid="c0"), present], [volume, wanted]).writes == ()
    other, going = there(volume, uid="c1"), there(volume, uid="c0", deletionTimestamp="now")
    gone = Delete(kind=JOB, name="x", uid="u1", resource_version="7")
    for lost in (other, going):
        for waiting in (frozenset[Kind](), frozenset({JOB})):
            found = found_changes([lost, present], [volume, wanted], waiting=waiting)
            assert found.writes == (gone,)


def test_an_object_that_waits_is_only_scaled() -> None:
    present = there(child("Deployment", replicas=1, template="old"))
    waiting = frozenset({DEPLOYMENT})
    wanted = child("Deployment", replicas=3, template="new", applied="h2")
    assert found_changes([present], [wanted], waiting=waiting).writes == (
        Scale(kind=DEPLOYMENT, name="x", uid="u1", replicas=3),
    )
    (fewer,) = found_changes(
        [present], [child("Deployment", replicas=0, template="new", applied="h2")], waiting=waiting
    ).writes
    assert fewer == Scale(kind=DEPLOYMENT, name="x", uid="u1", replicas=0, takes_away=True)
    same = child("Deployment", replicas=1, template="new", applied="h2")
    assert found_changes([present], [same], waiting=waiting).writes == ()
    left = child("Deployment", template="new", applied="h2")
    assert found_changes([present], [left], waiting=waiting).writes == ()
    assert found_changes([], [wanted], waiting=waiting).writes == ()


def with_models(volume: Manifest | None, *, applied: str = "h") -> Manifest:
    mount = {"name": "models", "mountPath": "/models"}
    container: Manifest = {"name": "engine", "volumeMounts": [mount] if volume else []}
    volumes = [{"name": "models", **volume}] if volume else []
    pod = {"containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes]}
    return child("Deployment", applied=applied, template={"spec": pod})


@pytest.mark.parametrize(
    ("present", "wanted", "takes_away"), [(3, 2, True), (2, 3, False), (2, None, False)]
)
def test_fewer_engines_are_known_as_such(
    present: int, wanted: int | None, takes_away: bool
) -> None:
    before, after = with_models(None), with_models(None, applied="h2")
    before["spec"]["replicas"] = present
    if wanted is not None:
        after["spec"]["replicas"] = wanted
    (write,) = found_changes([there(before)], [after]).writes
    assert write.takes_away == takes_away


def test_an_image_volume_that_the_server_drops_is_written_once() -> None:
    wanted = with_models({"image": {"reference": "i"}})
    dropped = there(with_models(None))
    found = found_changes([dropped], [wanted])
    assert (found.writes, found.is_curtailed) == ((), True)
    edited = with_models({"image": {"reference": "j"}}, applied="h2")
    found = found_changes([dropped], [edited])
    assert (len(found.writes), found.is_curtailed) == (1, False)
    assert not found_changes([there(wanted)], [wanted]).is_curtailed


def test_another_volume_that_somebody_removes_comes_back() -> None:
    wanted = with_models({"persistentVolumeClaim": {"claimName": "c"}})
    found = found_changes([there(with_models(None))], [wanted])
    assert (len(found.writes), found.is_curtailed) == (1, False)


def claim(size: str) -> Manifest:
    return object_of(
        VOLUME_CLAIM,
        {"name": "models", "annotations": {names.APPLIED: "h"}},
        spec={"resources": {"requests": {"storage": size}}},
    )


def test_a_claim_grows_and_never_shrinks() -> None:
    def asked(wanted: Manifest) -> list[object]:
        written = found_changes([there(claim("20Gi"))], [wanted]).writes
        return [
            write.manifest["spec"]["resources"]["requests"]["storage"]
            for write in written
            if isinstance(write, Apply)
        ]

    assert asked(claim("30Gi")) == ["30Gi"]
    assert asked(claim("20480Mi")) == asked(claim("10Gi")) == []
    edited = claim("10Gi")
    edited["metadata"]["annotations"][names.APPLIED] = "h2"
    assert asked(edited) == ["20Gi"]


def test_a_field_is_ours_when_our_apply_has_it() -> None:
    def owned(**entry: Any) -> bool:
        fields = {"manager": "octavo-operator", "operation": "Apply"}
        fields["fieldsV1"] = {"f:spec": {"f:replicas": {}}}  # type: ignore[assignment]
        return writes.owns_replicas({"metadata": {"managedFields": [fields | entry]}})

    assert owned()
    assert not owned(manager="kubectl")
    assert not owned(operation="Update")
    assert not owned(fieldsV1={"f:spec": {"f:template": {}}})
    assert not writes.owns_replicas({"metadata": {}})
