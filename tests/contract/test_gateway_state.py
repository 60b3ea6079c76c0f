"""What a gateway says in /state is what the operator reads: they share no code."""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import Cluster, Gateway, clustered, until

from octavo.gateway.discovery import Endpoint, Service
from octavo.gateway.replica import stage_word
from octavo.gateway.report import report
from octavo.operator.gateway_reports import read_report
from octavo.operator.observed import EngineSeen, Naming, ServiceLoad, State
from octavo.v1 import engine_pb2

FOR_PEOPLE = ("arrivals_per_s",)
"""What no operator decides by."""


def told(gateway: Gateway) -> tuple[bytes, dict[str, Any]]:
    found: dict[str, Any] = report(gateway.fleet, gateway="g", uptime_s=12.5)
    return json.dumps(found).encode(), found


def test_every_field_arrives() -> None:
    async def scenario(gateway: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        endpoint = Endpoint(
            address=engine.address, uid="u1", pod="a/s-engine-x", service="a/s", terminating=False
        )
        cluster.tell(endpoint, services=(Service(id="a/s", names=("tiny",)),))
        await until(lambda: any(e["routable"] for e in told(gateway)[1]["engines"]), 8.0)
        body, raw = told(gateway)
        found = read_report(body)
        assert (found.gateway, found.uptime_s) == ("g", 12.5)
        assert found.engines == (EngineSeen(**raw["engines"][0]),)
        load = {k: v for k, v in raw["services"][0].items() if k not in FOR_PEOPLE}
        load["naming"] = Naming(**load["naming"])
        assert found.services == (ServiceLoad(**load),)
        assert found.engines[0].routable

    async def within() -> None:
        async with clustered(proves=True) as (gateway, cluster):
            await scenario(gateway, cluster)

    asyncio.run(within())


def test_who_has_a_name_arrives() -> None:
    async def within() -> None:
        async with clustered(proves=True) as (gateway, cluster):
            old = Service(id="a/s", names=("tiny",))
            cluster.tell(services=(old, Service(id="b/s", names=("tiny",), created_unix_s=1)))
            await until(lambda: gateway.fleet.readiness().ready)
            first, second = read_report(told(gateway)[0]).services
            assert first.naming == Naming(names=("tiny",), heirs=(("tiny", "b/s"),))
            assert second.naming == Naming(names=("b/tiny",), lost=(("tiny", "a/s"),))

    asyncio.run(within())


def test_a_gateway_of_0_1_0_is_understood() -> None:
    """It does not say how long it runs."""
    raw = {"gateway": "g", "engines": [], "services": [{"service": "a/s", "queue_s": 1.5}]}
    found = read_report(json.dumps(raw).encode())
    assert (found.uptime_s, found.services[0].queue_s) == (None, 1.5)


def test_every_stage_of_an_engine_is_a_state_that_is_known() -> None:
    stages = set(engine_pb2.Stage.values()) - {engine_pb2.STAGE_UNSPECIFIED}
    words = {stage_word(stage) for stage in stages}
    assert words | {"connecting", "suspected", "lost"} == set(get_args(State))
