from __future__ import annotations

from typing import Any

import pytest
from tests.operator.building import resource, service
from tests.operator.test_revision import wanted
from tests.operator.world import World

from octavo.operator import desired_engine, names
from octavo.operator.kinds import DEPLOYMENT, Manifest
from octavo.operator.observed import Reference

IDENTITY = "spiffe://cluster.local/ns/octavo/sa/octavo-gateway"
TLS: dict[str, Any] = {"engine": {"tls": {"secretName": "pair"}}}
PAIR = {Reference(kind="Secret", name="pair", key=k): "1" for k in ("ca.crt", "tls.crt", "tls.key")}


def pod(**spec: Any) -> Manifest:
    found: Manifest = desired_engine.pod_template(service(**spec), "image", "", IDENTITY)["spec"]
    return found


def test_an_engine_with_tls_is_told_whom_to_answer_and_has_a_port_that_says_so() -> None:
    found, plain = pod(**TLS), pod()
    (engine,) = found["containers"]
    args = engine["args"]
    assert "--plaintext" not in args
    at = args.index("--tls-dir")
    assert args[at : at + 4] == ["--tls-dir", "/etc/octavo/tls", "--tls-client", IDENTITY]
    assert engine["ports"][0] == {"name": "grpcs", "containerPort": 50051, "protocol": "TCP"}
    (volume,) = [v for v in found["volumes"] if v not in plain["volumes"]]
    assert volume == {"name": "tls", "secret": {"secretName": "pair", "defaultMode": 0o440}}
    assert {"name": "tls", "mountPath": "/etc/octavo/tls", "readOnly": True} in engine[
        "volumeMounts"
    ]


def test_who_the_gateway_is_does_not_matter_to_engines_without_tls() -> None:
    one, other = (
        desired_engine.pod_template(service(), "image", "", caller) for caller in ("", IDENTITY)
    )
    assert one == other


def test_new_data_of_the_secret_restart_nobody_and_another_secret_does() -> None:
    world = World(resource(replicas=1, **TLS), references=dict(PAIR))
    world.settle()
    assert world.condition("Ready")["status"] == "True"
    before = {p["metadata"]["uid"] for p in world.engines()}
    world.references |= dict.fromkeys(PAIR, "2")
    assert not world.plan().writes
    world.settle()
    assert {p["metadata"]["uid"] for p in world.engines()} == before
    assert names.REFERENCES not in world.deployment["spec"]["template"]["metadata"]["annotations"]
    world.references |= {Reference(kind="Secret", name="next", key=r.key): "1" for r in PAIR}
    world.edit(resource(replicas=1, engine={"tls": {"secretName": "next"}})["spec"])
    world.settle()
    assert not before & {p["metadata"]["uid"] for p in world.engines()}


@pytest.mark.parametrize("lacking", PAIR, ids=lambda reference: str(reference.key))
def test_engines_wait_for_each_part_of_the_secret_and_it_is_said(lacking: Reference) -> None:
    world = World(resource(replicas=1, **TLS), references={**PAIR, lacking: None})
    assert wanted(world).waiting >= {DEPLOYMENT}
    world.settle()
    ready = world.condition("Ready")
    assert (ready["reason"], ready["message"]) == ("ReferenceMissing", f"waits for {lacking}")
    assert world.engines() == []
    world.references[lacking] = "1"
    world.settle()
    assert world.condition("Ready")["status"] == "True"


def test_what_cannot_be_read_of_the_secret_keeps_engines_that_take_values_from_another() -> None:
    """A hash of what is not known would be another one, and so another template."""
    variable = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "one"}}}
    key = Reference(kind="Secret", name="keys", key="one")
    spec: dict[str, Any] = {"engine": {"tls": {"secretName": "pair"}, "env": [variable]}}
    world = World(resource(replicas=1, **spec), references={**PAIR, key: "1"})
    world.settle()
    before = world.deployment["spec"]["template"]
    for reference in (*PAIR, key):
        del world.references[reference]
    assert not world.plan().writes
    world.settle()
    assert world.deployment["spec"]["template"] == before
    assert world.condition("Rollout")["reason"] == "ReferenceUnread"
