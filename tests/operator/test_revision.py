from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import from_hub, resource
from tests.operator.world import World

from octavo.operator import names
from octavo.operator.kinds import DEPLOYMENT, JOB, Manifest
from octavo.operator.model_state import judge
from octavo.operator.observed import Reference
from octavo.operator.revision import Revision, revision
from octavo.operator.spec import InferenceService, parse

HUB = Reference(kind="Secret", name="hub")
PAIR = tuple(
    Reference(kind="Secret", name="pair", key=key) for key in ("ca.crt", "tls.crt", "tls.key")
)
WITH_SECRET: dict[str, Any] = {"model": {"uri": "pvc://w/x", "secretRef": {"name": "hub"}}}


def wanted(world: World) -> Revision:
    parsed = parse(world.resource)
    assert isinstance(parsed, InferenceService)
    observed = world.observed()
    deployment = world.children.get(("Deployment", "llama-engine"))
    return revision(parsed, observed, deployment, judge(parsed, observed, world.now))


def test_a_late_secret_heals_by_itself() -> None:
    world = World(resource(replicas=1, **WITH_SECRET), references={HUB: None})
    world.execute(world.plan())
    assert ("Deployment", "llama-engine") not in world.children
    ready = world.condition("Ready")
    assert (ready["reason"], ready["message"]) == ("ReferenceMissing", "waits for Secret hub")
    world.references[HUB] = "11"
    world.settle()
    assert world.condition("Ready")["status"] == "True"


def test_a_rotated_secret_rolls_once() -> None:
    world = World(resource(replicas=1, **WITH_SECRET), references={HUB: "11"})
    world.settle()
    before = wanted(world)
    world.references[HUB] = "22"
    assert wanted(world).template != before.template
    old = {pod["metadata"]["uid"] for pod in world.engines()}
    world.settle()
    assert not old & {pod["metadata"]["uid"] for pod in world.engines()}
    assert world.plan().is_empty


def test_other_pins_roll_once_and_the_old_ones_stay_until_nobody_mounts_them() -> None:
    def pinned(text: str) -> Manifest:
        spec: Manifest = resource(replicas=2, cache={"pinnedPrefixes": [{"text": text}]})["spec"]
        return spec

    world = World(resource(replicas=2, cache={"pinnedPrefixes": [{"text": "a"}]}))
    world.settle()
    before = maps(world)
    old = {pod["metadata"]["uid"] for pod in world.engines()}
    world.edit(pinned("b"))
    while old & {pod["metadata"]["uid"] for pod in world.engines()}:
        assert before <= maps(world)
        world.execute(world.plan())
        world.step()
        world.now += 5
    world.settle()
    assert len(maps(world)) == 1
    assert not before & maps(world)
    world.edit(resource(replicas=2)["spec"])
    world.settle()
    assert maps(world) == set()


def maps(world: World) -> set[str]:
    return {name for kind, name in world.children if kind == "ConfigMap"}


def test_a_secret_that_vanishes_restarts_nobody_and_is_told() -> None:
    world = World(resource(replicas=1, **WITH_SECRET), references={HUB: "11"})
    world.settle()
    pods = {pod["metadata"]["uid"] for pod in world.engines()}
    world.references[HUB] = None
    world.settle()
    assert {pod["metadata"]["uid"] for pod in world.engines()} == pods
    assert world.condition("Rollout")["reason"] == "ReferenceMissing"
    world.references[HUB] = "11"
    world.settle()
    assert {pod["metadata"]["uid"] for pod in world.engines()} == pods


def test_what_cannot_be_read_is_no_reason_to_act() -> None:
    world = World(resource(replicas=1, **WITH_SECRET))
    assert wanted(world).waiting == {DEPLOYMENT, JOB}
    assert wanted(world).missing == ()
    assert wanted(world).unread == (HUB,)


@pytest.mark.parametrize("spec", [WITH_SECRET, from_hub(secretRef={"name": "hub"})])
def test_what_cannot_be_read_is_said_and_why(spec: dict[str, Any]) -> None:
    world = World(resource(replicas=1, **spec))
    world.settle()
    for told in (world.condition("Ready"), world.condition("Rollout")):
        assert (told["status"], told["reason"]) == ("False", "ReferenceUnread")
        assert told["message"] == "Secret hub cannot be read: it is forbidden"
    assert not [key for key in world.children if key[0] in ("Job", "Deployment")]
    world.references[HUB] = "11"
    world.settle()
    assert world.condition("Ready")["status"] == "True"


def test_engines_serve_on_while_what_they_were_made_from_cannot_be_read() -> None:
    """As after a start of the operator, when nothing has been read yet."""
    world = World(resource(replicas=1, **WITH_SECRET), references={HUB: "11"})
    world.settle()
    before = copy.deepcopy((world.children, world.pods))
    del world.references[HUB]
    assert not world.plan().writes
    world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("Rollout")["reason"] == "ReferenceUnread"
    world.references[HUB] = "11"
    world.settle()
    assert world.condition("Rollout")["status"] == "True"
    assert (world.children, world.pods) == before


def test_a_job_waits_for_its_secret() -> None:
    spec = from_hub(secretRef={"name": "hub"})
    world = World(resource(replicas=1, **spec), references={HUB: None})
    world.execute(world.plan())
    assert not [key for key in world.children if key[0] in ("Job", "Deployment")]


def test_a_model_is_loaded_before_the_secret_is_there_that_only_engines_mount() -> None:
    spec = from_hub() | {"engine": {"tls": {"secretName": "pair"}}}
    world = World(resource(replicas=1, **spec), references=dict.fromkeys(PAIR))
    assert wanted(world).waiting == {DEPLOYMENT}
    world.execute(world.plan())
    assert [key[0] for key in world.children if key[0] in ("Job", "Deployment")] == ["Job"]
    assert world.condition("ModelCached")["reason"] == "Loading"
    assert world.condition("Rollout")["reason"] == "ReferenceMissing"


def test_a_rotated_secret_rolls_while_one_that_is_mounted_is_gone() -> None:
    spec = WITH_SECRET | {"engine": {"tls": {"secretName": "pair"}}}
    there = dict.fromkeys(PAIR, "44")
    world = World(resource(replicas=1, **spec), references={HUB: "11", **there})
    world.settle()
    before = wanted(world).template
    world.references |= dict.fromkeys(PAIR)
    assert wanted(world).template == before, "that alone restarts nobody"
    world.references[HUB] = "22"
    assert wanted(world).template != before
    assert wanted(world).waiting == frozenset()
    assert wanted(world).missing == PAIR


def test_engines_wait_for_their_model_and_those_there_are_do_not() -> None:
    world = World(resource(replicas=1, **from_hub()))
    assert wanted(world).waiting == {DEPLOYMENT}
    world.settle()
    assert wanted(world).waiting == frozenset()
    del world.children[next(key for key in world.children if key[0] == "Job")]
    assert wanted(world).waiting == frozenset()  # the very model is in use already


def test_the_default_image_is_kept_and_a_chosen_one_is_taken() -> None:
    world = World(resource(replicas=1))
    world.settle()
    world.installation = replace(world.installation, engine_images={"cpu": "next", "cuda": "next"})
    assert wanted(world).image == "octavo-engine:cpu"
    world.edit(resource(replicas=1, engine={"image": "mine:1"})["spec"])
    assert wanted(world).image == "mine:1"
    world.settle()
    world.edit(resource(replicas=1)["spec"])
    assert wanted(world).image == "next"
    assert world.deployment["metadata"]["annotations"][names.IMAGE] == "mine:1"
