from __future__ import annotations

import pytest

from octavo.operator.cluster import Key, Listing
from octavo.operator.kinds import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD,
    POD_MONITOR,
    SERVICE,
    Kind,
    Manifest,
)
from octavo.operator.mirror import Mirror

CHAT = Key("shop", "chat")


def thing(name: str, version: int, *, service: str | None = "chat", **more: object) -> Manifest:
    labels = {} if service is None else {"serving.octavo.dev/service": service}
    metadata = {
        "name": name,
        "namespace": "shop",
        "resourceVersion": str(version),
        "labels": labels,
        "managedFields": [{}],
    }
    return {"metadata": metadata, **more}


def listing(moment: int, *items: Manifest) -> Listing:
    return Listing(items=list(items), resource_version=str(moment))


def names_of(mirror: Mirror, service: Key = CHAT) -> list[str]:
    return [m["metadata"]["name"] for m in (*mirror.children(service), *mirror.pods(service))]


def test_objects_are_found_by_the_service_in_their_label() -> None:
    mirror = Mirror()
    assert mirror.see(INFERENCE_SERVICE, thing("chat", 1, service=None)) == CHAT
    assert mirror.see(DEPLOYMENT, thing("chat-engine", 2)) == CHAT
    assert mirror.see(SERVICE, thing("chat-engine", 3)) == CHAT
    assert mirror.see(POD, thing("chat-engine-x", 4)) == CHAT
    assert mirror.see(POD, thing("foreign", 5, service=None)) is None
    assert list(mirror.services) == [CHAT]
    assert [m["metadata"]["resourceVersion"] for m in mirror.children(CHAT)] == ["2", "3"]
    assert [m["metadata"]["name"] for m in mirror.pods(CHAT)] == ["chat-engine-x"]
    assert mirror.children(Key("other", "chat")) == ()


def test_an_older_or_equal_state_is_no_news() -> None:
    mirror = Mirror()
    mirror.see(DEPLOYMENT, thing("d", 9, spec=9))
    assert mirror.see(DEPLOYMENT, thing("d", 10, spec=10)) == CHAT
    assert mirror.see(DEPLOYMENT, thing("d", 9, spec=9)) is None
    assert mirror.see(DEPLOYMENT, thing("d", 10, spec=10)) is None
    assert mirror.children(CHAT)[0]["spec"] == 10


def test_a_deletion_counts_for_what_was_before_it() -> None:
    mirror = Mirror()
    mirror.see(DEPLOYMENT, thing("d", 9))
    assert mirror.lose(DEPLOYMENT, thing("d", 11)) == CHAT
    assert mirror.see(DEPLOYMENT, thing("d", 10)) is None
    assert names_of(mirror) == []
    assert mirror.see(DEPLOYMENT, thing("d", 12)) == CHAT
    assert mirror.lose(DEPLOYMENT, thing("d", 11)) is None, "the former one's deletion, late"
    assert names_of(mirror) == ["d"]


def test_a_listing_finds_what_the_watch_has_missed() -> None:
    mirror = Mirror()
    for name in ("same", "changed", "deleted"):
        mirror.see(DEPLOYMENT, thing(name, 5, service=name))
    items = [thing("same", 5, service="same"), thing("changed", 7, service="changed")]
    items.append(thing("new", 8, service="new"))
    changed = mirror.replace(DEPLOYMENT, None, listing(10, *items))
    assert changed == {Key("shop", name) for name in ("changed", "deleted", "new")}
    assert names_of(mirror, Key("shop", "deleted")) == []
    assert mirror.replace(DEPLOYMENT, None, listing(11, *items)) == set()


def test_what_happens_while_a_listing_is_made_survives_it() -> None:
    mirror = Mirror()
    mirror.see(DEPLOYMENT, thing("going", 5))
    mirror.see(DEPLOYMENT, thing("made", 12))
    mirror.lose(DEPLOYMENT, thing("going", 13))
    assert mirror.replace(DEPLOYMENT, None, listing(10, thing("going", 5))) == set()
    assert names_of(mirror) == ["made"]


def test_a_listing_of_one_namespace_says_nothing_of_another() -> None:
    mirror = Mirror()
    mirror.see(DEPLOYMENT, thing("d", 5))
    assert mirror.replace(DEPLOYMENT, "other", listing(10)) == set()
    assert mirror.replace(DEPLOYMENT, "shop", listing(10)) == {CHAT}


@pytest.mark.parametrize(("kind", "kept"), [(DEPLOYMENT, True), (POD, False)], ids=["keeps", "not"])
def test_only_deployments_keep_their_managers(kind: Kind, kept: bool) -> None:
    mirror = Mirror()
    manifest = thing("x", 5)
    mirror.see(kind, manifest)
    (seen,) = (*mirror.children(CHAT), *mirror.pods(CHAT))
    assert ("managedFields" in seen["metadata"]) is kept
    assert "managedFields" in manifest["metadata"], "the caller's is left as it is"


def test_an_optional_kind_is_there_once_it_could_be_listed() -> None:
    mirror = Mirror()
    assert mirror.optional_kinds == frozenset()
    mirror.replace(POD_MONITOR, None, listing(10, thing("m", 5)))
    assert mirror.optional_kinds == {"PodMonitor"}
    assert mirror.not_served(POD_MONITOR) == {CHAT}
    assert mirror.optional_kinds == frozenset()
    assert names_of(mirror) == []


def test_a_changed_label_moves_the_object() -> None:
    mirror = Mirror()
    mirror.see(POD, thing("p", 5))
    assert mirror.see(POD, thing("p", 6, service="other")) == Key("shop", "other")
    assert names_of(mirror) == []
    assert names_of(mirror, Key("shop", "other")) == ["p"]


def test_what_is_found_to_be_gone_is_forgotten_until_it_is_seen_again() -> None:
    mirror = Mirror()
    mirror.see(DEPLOYMENT, thing("d", 5))
    mirror.forget(DEPLOYMENT, Key("shop", "d"))
    mirror.forget(DEPLOYMENT, Key("shop", "never-seen"))
    assert names_of(mirror) == []
    assert mirror.see(DEPLOYMENT, thing("d", 6)) == CHAT


def with_condition(**condition: str) -> Mirror:
    """Returns one that has seen the service `a`, of which the status says that."""
    mirror = Mirror()
    mirror.see(INFERENCE_SERVICE, thing("a", 5, status={"conditions": [condition]}))
    return mirror


def test_readiness_is_what_the_status_says() -> None:
    mirror = Mirror()
    for name, status in (("a", {"conditions": [{"type": "Ready", "status": "True"}]}), ("b", {})):
        mirror.see(INFERENCE_SERVICE, thing(name, 5, status=status))
    assert dict(mirror.readiness()) == {Key("shop", "a"): True, Key("shop", "b"): False}


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        ("True", "Routable", True),
        ("False", "NotRoutable", False),
        ("False", "Loading", None),
        ("False", "NoEngines", None),
    ],
)
def test_gateways_reach_or_miss_engines_that_have_loaded_only(
    status: str, reason: str, told: bool | None
) -> None:
    mirror = with_condition(type="Routable", status=status, reason=reason)
    assert dict(mirror.reach()).get(Key("shop", "a")) is told


@pytest.mark.parametrize(
    ("status", "reason", "told"),
    [
        ("False", "Stopped", None),
        ("Unknown", "ScaledToZero", None),
        ("True", "ScaledToZero", True),
        ("False", "Loading", False),
    ],
)
def test_whoever_is_to_have_no_engines_misses_none(
    status: str, reason: str, told: bool | None
) -> None:
    mirror = with_condition(type="Ready", status=status, reason=reason)
    assert dict(mirror.readiness()).get(Key("shop", "a")) is told
