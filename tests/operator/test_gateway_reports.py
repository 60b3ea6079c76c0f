"""The reports of gateways that are HTTP servers on addresses of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from tests.operator.fake_cluster import FakeCluster

from octavo.operator import gateway_reports
from octavo.operator.cluster import NO_LABELS, Key, Labels, Listing, UnavailableError
from octavo.operator.gateway_reports import FRESH_S, GatewayReports
from octavo.operator.kinds import ENDPOINT_SLICE, Kind, Manifest
from octavo.operator.observed import GatewayReport

GATEWAYS = Key("octavo", "gateway")
CHAT, EMBED = Key("shop", "chat"), Key("shop", "embed")


def engine(service: Key, uid: str, **more: object) -> Manifest:
    return {"uid": uid, "service": str(service), "state": "ready", "routable": True, **more}


def load(service: Key, **more: object) -> Manifest:
    return {"service": str(service), **more}


class Gateway:
    """A gateway's status server: answers what it is set to."""

    def __init__(self, name: str) -> None:
        self.state: Manifest = {"gateway": name, "engines": [], "services": []}
        self.status = 200
        self.port = 0
        self.num_asked = 0

    async def start(self, stack: AsyncExitStack) -> None:
        app = web.Application()
        app.router.add_get("/state", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.Response:
        self.num_asked += 1
        return web.json_response(self.state, status=self.status)


class SlowCluster(FakeCluster):
    """An API server whose lists come when `answers` is set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def list(
        self, kind: Kind, namespace: str | None, *, labels: Labels = NO_LABELS
    ) -> Listing:
        await self.answers.wait()
        return await super().list(kind, namespace, labels=labels)


class World:
    """A cluster, gateways behind a Service, a clock, and the reports about them."""

    def __init__(self) -> None:
        self.cluster = SlowCluster()
        self.time = 1000.0
        self.reports = GatewayReports(self.cluster, GATEWAYS, now=lambda: self.time)

    def place(self, *gateways: Gateway, ready: bool = True) -> None:
        """Makes gateways endpoints of the Service; each has a slice, because each has a port."""
        for gateway in gateways:
            endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}
            manifest = {
                "metadata": {
                    "name": f"gateway-{gateway.port}",
                    "namespace": "octavo",
                    "labels": {"kubernetes.io/service-name": "gateway"},
                },
                "ports": [{"name": "http", "port": 1}, {"name": "status", "port": gateway.port}],
                "endpoints": [endpoint],
            }
            self.cluster.put(ENDPOINT_SLICE, manifest)

    async def look_again(self) -> set[Key] | None:
        """Polls at a moment at which the endpoints are read anew."""
        self.time += 5.0
        return await self.reports.poll()


def run(case: Callable[[World, list[Gateway]], Awaitable[None]], *, gateways: int = 1) -> None:
    async def wrapped() -> None:
        async with AsyncExitStack() as stack:
            world = World()
            stack.push_async_callback(world.reports.close)
            started = [Gateway(f"g{number}") for number in range(gateways)]
            for gateway in started:
                await gateway.start(stack)
            async with asyncio.timeout(30):
                await case(world, started)

    asyncio.run(wrapped())


def test_reports_are_cut_up_by_service() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        (gateway,) = gateways
        gateway.state["engines"] = [engine(CHAT, "a", in_flight=3), engine(EMBED, "b")]
        gateway.state["services"] = [load(CHAT, held=2, queue_s=1)]
        world.place(gateway)
        assert await world.reports.poll() is None, "a gateway has come: all are concerned"
        seen = world.reports.about(CHAT)
        assert seen.silent == 0
        (report,) = seen.reports
        assert (report.gateway, [e.uid for e in report.engines]) == ("g0", ["a"])
        assert report.engines[0].in_flight == 3
        assert (report.services[0].held, report.services[0].queue_s) == (2, 1.0)
        (other,) = world.reports.about(EMBED).reports
        assert ([e.uid for e in other.engines], other.services) == (["b"], ())

    run(case)


def test_a_gateway_that_says_nothing_of_a_service_has_reported_all_the_same() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        world.place(*gateways)
        await world.reports.poll()
        assert world.reports.about(CHAT).reports == (GatewayReport(gateway="g0"),)

    run(case)


def test_before_the_first_poll_nothing_is_known() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        assert not world.reports.are_known
        world.cluster.fail(UnavailableError("away"))
        await world.reports.poll()
        assert not world.reports.are_known
        world.cluster.faults.clear()
        await world.reports.poll()
        assert world.reports.are_known

    run(case)


def test_only_services_with_news_are_named() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        (gateway,) = gateways
        gateway.state["engines"] = [engine(CHAT, "a"), engine(EMBED, "b")]
        gateway.state["services"] = [load(CHAT, in_flight=1, queue_s=0.5)]
        world.place(gateway)
        await world.reports.poll()
        assert await world.reports.poll() == set()
        gateway.state["services"] = [load(CHAT, in_flight=2, queue_s=0.7)]
        gateway.state["engines"][0]["in_flight"] = 2
        assert await world.reports.poll() == set(), "numbers always change"
        gateway.state["engines"][1]["routable"] = False
        assert await world.reports.poll() == {EMBED}
        gateway.state["services"].append(load(EMBED, held=1))
        assert await world.reports.poll() == {EMBED}
        gateway.state["engines"].pop()
        assert await world.reports.poll() == {EMBED}

    run(case)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"wanted_age_s": None}, {"wanted_age_s": 0.4}),
        ({"wanted_age_s": 300.0}, {"wanted_age_s": 0.1}),
        ({"in_flight": 1}, {"in_flight": 0}),
    ],
    ids=["first request", "request after a pause", "idle"],
)
def test_a_request_after_a_pause_is_news_even_if_its_client_has_left(
    before: Manifest, after: Manifest
) -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        (gateway,) = gateways
        gateway.state["services"] = [load(CHAT, **before)]
        world.place(gateway)
        await world.reports.poll()
        gateway.state["services"] = [load(CHAT, **after)]
        assert await world.reports.poll() == {CHAT}

    run(case)


def test_another_owner_of_a_name_is_news() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        (gateway,) = gateways
        gateway.state["services"] = [load(CHAT, naming={"names": ["chat"]})]
        world.place(gateway)
        await world.reports.poll()
        assert await world.reports.poll() == set()
        lost = {"names": ["shop/chat"], "lost": [["chat", "other/chat"]]}
        gateway.state["services"] = [load(CHAT, naming=lost)]
        assert await world.reports.poll() == {CHAT}

    run(case)


def test_a_gateway_that_drains_is_heard_but_not_asked_which_engines_there_are() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        first, second = gateways
        first.state["services"] = [load(CHAT, in_flight=1, wanted_age_s=60.0)]
        first.state["uptime_s"] = 5000.0
        world.place(first, second)
        await world.reports.poll()
        world.place(first, ready=False)
        assert await world.look_again() is None, "a gateway leaves: all are concerned"
        first.state["services"] = [load(CHAT, in_flight=2, wanted_age_s=65.0)]
        await world.reports.poll()
        seen = world.reports.about(CHAT)
        assert ([r.gateway for r in seen.reports], seen.silent) == (["g1"], 0)
        (report,) = seen.leaving
        assert (report.gateway, report.uptime_s, report.services[0].in_flight) == ("g0", 5000.0, 2)
        assert world.reports.count(fresh=True) == 1
        assert world.reports.busy() == {CHAT}
        first.state["services"] = [load(CHAT, in_flight=0, wanted_age_s=66.0)]
        assert await world.reports.poll() == {CHAT}, "its last stream has ended"

    run(case, gateways=2)


def test_a_gateway_that_has_ended_is_not_asked_any_more_and_missed_by_nobody() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        first, second = gateways
        first.state["services"] = [load(CHAT, in_flight=1)]
        world.place(first, second)
        await world.reports.poll()
        world.place(first, ready=False)
        await world.look_again()
        first.status = 500
        await world.reports.poll()
        assert len(world.reports.about(CHAT).leaving) == 1, "it may be slow"
        world.time += FRESH_S
        await world.reports.poll()
        num_asked = first.num_asked
        await world.look_again()
        assert first.num_asked == num_asked
        seen = world.reports.about(CHAT)
        assert (len(seen.reports), seen.leaving, seen.silent) == (1, (), 0)
        assert world.reports.busy() == set()
        first.status = 200
        world.place(first)
        await world.look_again()
        assert len(world.reports.about(CHAT).reports) == 2, "it is Ready again"

    run(case, gateways=2)


def test_a_gateway_says_how_long_it_runs_also_of_services_that_it_does_not_know() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        (gateway,) = gateways
        gateway.state |= {"uptime_s": 3.5, "services": [load(CHAT)]}
        world.place(gateway)
        await world.reports.poll()
        for service in (CHAT, EMBED):
            (report,) = world.reports.about(service).reports
            assert report.uptime_s == 3.5

    run(case)


def test_gateways_come_and_go_with_their_endpoints() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        first, second = gateways
        world.place(first)
        await world.reports.poll()
        world.place(second)
        assert await world.reports.poll() == set(), "endpoints are not read each time"
        assert await world.look_again() is None
        assert [r.gateway for r in world.reports.about(CHAT).reports] == ["g0", "g1"]
        world.place(first, ready=False)
        assert await world.look_again() is None
        assert [r.gateway for r in world.reports.about(CHAT).reports] == ["g1"]
        assert world.reports.about(CHAT).silent == 0

    run(case, gateways=2)


@pytest.mark.parametrize("how", ["error", "nonsense", "closed"])
def test_a_gateway_that_fails_keeps_its_report_for_a_while_and_is_silent_then(how: str) -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        (gateway,) = gateways
        gateway.state["engines"] = [engine(CHAT, "a")]
        world.place(gateway)
        await world.reports.poll()
        if how == "error":
            gateway.status = 500
        elif how == "nonsense":
            gateway.state = {"engines": [{"no": "uid"}]}
        else:
            world.cluster.remove(ENDPOINT_SLICE, Key("octavo", f"gateway-{gateway.port}"))
            gateway.port = 1
            world.place(gateway)
            assert await world.look_again() is None, "another gateway, which was never heard of"
            assert world.reports.about(CHAT).silent == 1
            return
        assert await world.reports.poll() == set()
        assert len(world.reports.about(CHAT).reports) == 1
        world.time += FRESH_S
        assert await world.reports.poll() is None
        seen = world.reports.about(CHAT)
        assert (seen.reports, seen.silent) == ((), 1)
        assert (world.reports.count(fresh=True), world.reports.count(fresh=False)) == (0, 1)

    run(case)


def test_known_gateways_are_asked_on_while_the_api_server_is_away() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        (gateway,) = gateways
        world.place(gateway)
        await world.reports.poll()
        world.cluster.fail(UnavailableError("away"))
        gateway.state["engines"] = [engine(CHAT, "a")]
        assert await world.look_again() == {CHAT}
        assert world.reports.about(CHAT).silent == 0

    run(case)


def test_known_gateways_are_asked_on_while_the_api_server_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_reports, "ANSWER_S", 0.2)

    async def case(world: World, gateways: list[Gateway]) -> None:
        first, second = gateways
        world.place(first)
        await world.reports.poll()
        world.place(second)
        world.cluster.answers.clear()
        first.state["engines"] = [engine(CHAT, "a")]
        assert await world.look_again() == {CHAT}
        first.state["engines"] = []
        assert await world.reports.poll() == {CHAT}
        world.cluster.answers.set()
        assert await world.reports.poll() is None, "the answer counts when it comes"
        assert len(world.cluster.calls) == 2, "nor was the API server asked twice"
        assert [r.gateway for r in world.reports.about(CHAT).reports] == ["g0", "g1"]
        world.cluster.answers.clear()
        await world.look_again()

    run(case, gateways=2)


def test_a_discovery_that_kopf_takes_along_is_begun_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When kopf ends it cancels what began since it did, whoever waits for that."""
    monkeypatch.setattr(gateway_reports, "ANSWER_S", 0.2)

    async def case(world: World, gateways: list[Gateway]) -> None:
        world.place(gateways[0])
        await world.reports.poll()
        world.cluster.answers.clear()
        before = asyncio.all_tasks()
        await world.look_again()
        (discovery,) = asyncio.all_tasks() - before
        discovery.cancel()
        await asyncio.wait([discovery])
        world.cluster.answers.set()
        await world.reports.poll()
        world.place(gateways[1])
        assert await world.look_again() is None, "a gateway came"

    run(case, gateways=2)


def test_a_state_of_a_newer_gateway_is_that_of_a_new_engine() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        (gateway,) = gateways
        gateway.state["engines"] = [engine(CHAT, "a", state="hovering", colour="red")]
        world.place(gateway)
        await world.reports.poll()
        (report,) = world.reports.about(CHAT).reports
        assert (report.engines[0].state, report.engines[0].routable) == ("connecting", True)

    run(case)


def test_services_with_requests_are_busy() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        first, second = gateways
        first.state["services"] = [load(CHAT, in_flight=1), load(EMBED)]
        second.state["services"] = [load(CHAT)]
        world.place(first, second)
        await world.reports.poll()
        assert world.reports.busy() == {CHAT}
        second.state["services"] = [load(EMBED, queue_s=0.2)]
        await world.reports.poll()
        assert world.reports.busy() == {CHAT, EMBED}

    run(case, gateways=2)


def test_how_long_no_gateway_has_reached_a_service_is_known() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        def unreached_s(service: Key = CHAT) -> float:
            return world.reports.about(service).unreached_s

        first, second = gateways
        for gateway in gateways:
            gateway.state["engines"] = [engine(CHAT, "a")]
        world.place(first, second)
        await world.reports.poll()
        await world.look_again()
        assert (unreached_s(), unreached_s(EMBED)) == (0.0, 5.0)
        first.state["engines"] = [engine(CHAT, "a", state="lost", routable=False)]
        await world.look_again()
        assert unreached_s() == 0.0, "the other one reaches it"
        second.state["engines"] = []
        await world.look_again()
        await world.look_again()
        assert unreached_s() == 10.0
        for gateway in gateways:
            world.place(gateway, ready=False)
        await world.look_again()
        assert unreached_s() == 15.0, "nobody is left who might"
        first.state["engines"] = [engine(CHAT, "a")]
        await world.look_again()
        assert unreached_s() == 20.0, "it gets no new requests"
        world.place(first)
        await world.look_again()
        assert unreached_s() == 0.0

    run(case, gateways=2)


def test_who_reaches_what_is_not_known_while_a_gateway_is_silent_or_nobody_asks() -> None:
    async def case(world: World, gateways: list[Gateway]) -> None:
        first, second = gateways
        world.place(first, second)
        world.time += 3600.0
        await world.reports.poll()
        assert world.reports.about(CHAT).unreached_s == 0.0, "it waited for the lease"
        await world.look_again()
        assert world.reports.about(CHAT).unreached_s == 5.0
        second.status = 500
        for _ in range(3):
            await world.look_again()
        assert world.reports.about(CHAT).unreached_s == 0.0
        second.status = 200
        await world.look_again()
        assert world.reports.about(CHAT).unreached_s == 5.0
        world.time += 60.0
        await world.reports.poll()
        assert world.reports.about(CHAT).unreached_s == 0.0, "the operator stood still"

    run(case, gateways=2)
