from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.engine_pods import pod
from tests.operator.world import START

from octavo.operator import names, routable
from octavo.operator.kinds import Manifest
from octavo.operator.observed import EngineSeen, GatewayReport, Gateways

LOADED = pod("a", ready=True)
OPEN = pod("a", ready=True, routable=True)


def seen(*, routable: bool = True, **more: Any) -> EngineSeen:
    return EngineSeen(uid="uid-a", routable=routable, **({"state": "ready"} | more))


def gateways(*engines: EngineSeen | None, silent: int = 0) -> Gateways:
    reports = tuple(
        GatewayReport(gateway=str(n), engines=(engine,) if engine else ())
        for n, engine in enumerate(engines)
    )
    return Gateways(reports=reports, silent=silent)


def change(engine: Manifest, told: Gateways | None) -> tuple[str, str] | None:
    found = routable.gates([engine], told, START)
    if not found:
        return None
    (gate,) = found
    assert (gate.pod, gate.uid, gate.condition["type"]) == ("a", "uid-a", names.ROUTABLE_GATE)
    return gate.condition["status"], gate.condition["reason"]


def test_a_gate_opens_when_every_gateway_can_send_requests() -> None:
    assert change(LOADED, gateways(seen(), seen())) == ("True", "Routable")


@pytest.mark.parametrize(
    "told",
    [
        gateways(seen(), seen(routable=False, state="loading")),
        gateways(seen(), None),
        gateways(seen(), silent=1),
        gateways(),
        gateways(EngineSeen(uid="uid-b", routable=True, state="ready")),
    ],
    ids=["one cannot", "one does not know it", "one is silent", "there is none", "another engine"],
)
def test_a_gate_stays_closed_as_long_as_one_gateway_cannot(told: Gateways) -> None:
    assert change(LOADED, told) is None
    assert routable.waits_for(LOADED, told)


def test_engines_are_reached_while_one_gateway_can_send_requests_to_one() -> None:
    lost = replace(gateways(seen(routable=False, state="lost"), None), unreached_s=7.0)
    assert routable.unreached_s([OPEN], lost) == 7.0
    assert routable.unreached_s([OPEN, pod("b")], gateways(seen(), None)) is None
    assert routable.unreached_s([pod("b")], replace(gateways(seen()), unreached_s=7.0)) == 7.0
    assert routable.unreached_s([OPEN], None) is None, "nobody could tell"


def test_without_a_gateway_it_is_enough_that_the_model_is_loaded() -> None:
    assert change(LOADED, None) == ("True", "NoGateway")
    assert change(pod("a"), None) is None


@pytest.mark.parametrize(
    "told",
    [None, gateways(), gateways(seen(routable=False, state="suspected")), gateways(None, silent=2)],
)
def test_an_open_gate_stays_open(told: Gateways | None) -> None:
    assert change(OPEN, told) is None


def test_an_engine_that_a_gateway_saw_fail_is_shut_out_and_let_in_again() -> None:
    failed = seen(routable=False, state="failed", detail="probe failed")
    assert change(OPEN, gateways(seen(), failed)) == ("False", "EngineFailed")
    assert change(LOADED, gateways(seen(), failed)) is None
    assert change(LOADED, gateways(seen(), seen())) == ("True", "Routable")


def test_pods_that_go_are_left_alone() -> None:
    assert change(pod("a", ready=True, going=True), gateways(seen())) is None


def test_what_a_gate_waits_for_is_told_in_a_gateway_s_words() -> None:
    told = gateways(seen(), seen(routable=False, state="warming", detail="probe runs"))
    assert routable.waits_for(LOADED, told) == "probe runs"
    assert routable.waits_for(LOADED, gateways(silent=2)) == "2 gateways do not answer"
    assert routable.waits_for(LOADED, gateways()) == "no gateway is ready"
    assert routable.waits_for(LOADED, gateways(seen(), silent=2)) == "2 gateways do not answer"
