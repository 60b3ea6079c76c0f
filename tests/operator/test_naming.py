from __future__ import annotations

from typing import Any

import pytest
from tests.operator.building import resource
from tests.operator.world import World

from octavo.operator.kinds import Manifest
from octavo.operator.observed import Naming, ServiceLoad

MODEL = {"uri": "pvc://weights/llama"}
PLAIN = Naming(names=("llama",))
LOST = Naming(names=("team/llama",), lost=(("llama", "shop/chat"),))
HELD = Naming(names=("llama",), heirs=(("llama", "shop/chat"),))


def told(world: World, naming: Naming | None) -> Manifest:
    world.load = ServiceLoad(service="team/llama", naming=naming)
    world.execute(world.plan())
    return world.condition("Named")


def settled(**more: Any) -> World:
    world = World(resource(replicas=1), **more)
    world.settle()
    return world


def events(world: World) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in world.events if "Name" in event.reason]


def test_the_owner_reads_which_names_requests_use() -> None:
    found = told(settled(), Naming(names=("llama", "team/small")))
    assert (found["status"], found["reason"]) == ("True", "Named")
    assert found["message"] == "requests use llama, team/small"


def test_a_name_that_means_another_service_is_told_to_who_claims_it() -> None:
    world = settled()
    found = told(world, LOST)
    assert (found["status"], found["reason"]) == ("False", "NameOfAnother")
    assert "llama means shop/chat" in found["message"]
    assert world.resource["status"]["model"] == "team/llama"
    assert events(world) == [("Warning", "NameOfAnother")]
    assert world.condition("Ready")["status"] == "True", "its engines serve all the same"


def test_a_name_that_another_service_waits_for_is_told_to_who_has_it() -> None:
    world = settled()
    told(world, PLAIN)
    found = told(world, HELD)
    assert (found["status"], found["reason"]) == ("True", "NameContested")
    assert "shop/chat claims llama" in found["message"]
    assert world.resource["status"]["model"] == "llama"
    assert events(world) == [("Normal", "Named"), ("Warning", "NameContested")]


def test_what_was_told_stays_while_no_gateway_tells() -> None:
    world = settled()
    before = told(world, LOST)
    world.is_silent = True
    world.execute(world.plan())
    assert world.condition("Named") == before
    assert world.resource["status"]["model"] == "team/llama"


@pytest.mark.parametrize("name", ["b", "team/b"])
def test_the_name_that_another_service_left_to_it_stays_while_no_gateway_tells(name: str) -> None:
    world = World(resource(replicas=1, model=MODEL | {"servedNames": ["a", "b"]}))
    world.settle()
    told(world, Naming(names=(name,), lost=(("a", "team/chat"),)))
    world.is_silent = True
    world.execute(world.plan())
    assert world.resource["status"]["model"] == name


def test_a_name_that_is_no_longer_claimed_is_not_shown_while_no_gateway_tells() -> None:
    world = settled()
    told(world, Naming(names=("team/old",)))
    world.is_silent = True
    world.edit(resource(replicas=1, model=MODEL | {"servedNames": ["new"]})["spec"])
    world.execute(world.plan())
    assert world.resource["status"]["model"] == "new"


def test_without_gateways_or_from_older_ones_nothing_is_told() -> None:
    assert told(settled(), None) == {}
    assert told(settled(gateways=False), None) == {}


def test_without_gateways_the_first_name_that_is_claimed_is_shown() -> None:
    world = World(resource(replicas=1, model=MODEL | {"servedNames": ["a"]}), gateways=False)
    world.settle()
    world.edit(resource(replicas=1, model=MODEL | {"servedNames": ["b", "a"]})["spec"])
    world.execute(world.plan())
    assert world.resource["status"]["model"] == "b"
