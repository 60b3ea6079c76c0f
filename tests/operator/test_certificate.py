from __future__ import annotations

from tests.operator.building import resource
from tests.operator.test_engine_tls import PAIR, TLS
from tests.operator.world import START, World

from octavo.operator.certificate import NOTICE_S
from octavo.operator.observed import Reference
from octavo.operator.timestamps import to_text

CERTIFICATE = Reference(kind="Secret", name="pair", key="tls.crt")
DAY_S = 86400.0


def secured(ends: float) -> World:
    world = World(resource(replicas=1, **TLS), references=dict(PAIR), ends={CERTIFICATE: ends})
    world.settle()
    return world


def told(world: World) -> tuple[str, str, str]:
    found = world.condition("CertificateValid")
    return found["status"], found["reason"], found["message"]


def test_a_certificate_is_valid_until_seven_days_before_its_end() -> None:
    ends = START + 10 * DAY_S
    world = secured(ends)
    date = to_text(ends)
    assert told(world) == (
        "True",
        "CertificateValid",
        f"the certificate in Secret pair is valid until {date}",
    )
    assert world.plan().is_empty
    world.now = ends - NOTICE_S
    world.settle()
    assert told(world) == (
        "False",
        "CertificateEndsSoon",
        f"the certificate in Secret pair ends at {date}: put another one there",
    )
    assert world.condition("Ready")["status"] == "True", "it serves"
    world.now = ends
    world.settle()
    assert told(world)[:2] == ("False", "CertificateEnded")
    reasons = [event.reason for event in world.events]
    warned = [r for r in reasons if r.startswith("CertificateEnd")]
    assert warned == ["CertificateEndsSoon", "CertificateEnded"]
    world.ends[CERTIFICATE] = world.now + 90 * DAY_S
    world.settle()
    assert told(world)[0] == "True"


def test_what_is_no_certificate_is_told() -> None:
    world = secured(START + 10 * DAY_S)
    del world.ends[CERTIFICATE]
    world.settle()
    assert told(world)[:2] == ("False", "CertificateUnreadable")


def test_services_without_tls_have_no_such_condition_and_lose_it() -> None:
    world = secured(START + 10 * DAY_S)
    world.edit(resource(replicas=1)["spec"])
    world.settle()
    assert world.condition("CertificateValid") == {}
    assert world.condition("Ready")["status"] == "True"
