"""What the gateways say of themselves: each one is asked for its /state every second or so.

The gateways are the endpoints of one Service. While the API server is away, or slow, the known ones
are asked on; a gateway that does not answer keeps its last report for FRESH_S and is silent from
then on. One that is not Ready, or not any more, is asked as long as it answers. Knows nothing of
what follows from a report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

import httpx
import msgspec
import structlog

from octavo.operator.cluster import Cluster, ClusterError, Key
from octavo.operator.kinds import ENDPOINT_SLICE, Manifest
from octavo.operator.observed import EngineSeen, GatewayReport, Gateways, ServiceLoad, State

log = structlog.get_logger(__name__)

FRESH_S: Final = 10.0
"""Age from which on a report says nothing about the present."""

DISCOVER_S: Final = 5.0
"""Between two looks at which gateways there are."""

ANSWER_S: Final = 2.0
"""Time for a gateway's answer, and for the API server's before the known gateways are asked."""

WANTED_S: Final = 5.0
"""Age of the last request up to which a service counts as asked for just now."""

PORT_NAME: Final = "status"
DEFAULT_PORT: Final = 8081

_STATES: Final = get_args(State)


@dataclass(slots=True, kw_only=True)
class _Gateway:
    """One gateway and what it said last."""

    address: str
    """HOST:PORT of its status server."""
    is_ready: bool = True
    """Whether it gets new requests, as its endpoint says."""
    asked_at: float = float("-inf")
    """When it answered last, on the loop's clock."""
    report: GatewayReport | None = None
    parts: Mapping[str, GatewayReport] = field(default_factory=dict)
    """The report, cut up by service."""
    failing: bool = False

    def about(self, service: Key) -> GatewayReport:
        """Returns what it said last of a service; it has said something."""
        assert self.report is not None, "it has answered"
        found = self.parts.get(str(service))
        return found or replace(self.report, engines=(), services=())


class GatewayReports:
    """The gateways of one Service and their reports.

    Args:
        cluster: knows the endpoints of the Service.
        service: namespace and name of the Service.
        now: the loop's clock.
    """

    def __init__(self, cluster: Cluster, service: Key, *, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._service = service
        self._now = now
        self._client = httpx.AsyncClient(timeout=ANSWER_S, trust_env=False)
        self._gateways: dict[str, _Gateway] = {}
        self._discovered_at = float("-inf")
        self._discovery: asyncio.Task[None] | None = None
        self._members: frozenset[tuple[str, bool]] = frozenset()
        self._polled_at = self._blind_at = now()
        """The latter: when it was last not known what all gateways say."""
        self._reached_at: dict[str, float] = {}
        """When a Ready gateway could last send requests to a service's engines, if since then."""

    async def close(self) -> None:
        """Closes the connections."""
        if self._discovery is not None:
            self._discovery.cancel()
            await asyncio.wait([self._discovery])
        await self._client.aclose()

    @property
    def are_known(self) -> bool:
        """Whether it is known which gateways there are."""
        return self._discovered_at > float("-inf")

    def count(self, *, fresh: bool) -> int:
        """Returns the number of Ready gateways with a fresh report, or of those without one."""
        return sum(self._is_fresh(gateway) is fresh for gateway in self._ready())

    def about(self, service: Key) -> Gateways:
        """Returns what the gateways say about one InferenceService."""
        told: dict[bool, list[GatewayReport]] = {True: [], False: []}
        for gateway in self._gateways.values():
            if gateway.report is not None and self._is_fresh(gateway):
                told[gateway.is_ready].append(gateway.about(service))
        return Gateways(
            reports=tuple(told[True]),
            leaving=tuple(told[False]),
            silent=self.count(fresh=False),
            unreached_s=self._polled_at - self._reached_at.get(str(service), self._blind_at),
        )

    def busy(self) -> set[Key]:
        """Returns the services that have requests somewhere."""
        heard = (g for g in self._gateways.values() if g.is_ready or self._is_fresh(g))
        loads = (load for g in heard if g.report for load in g.report.services)
        return {_key(load.service) for load in loads if load.in_flight or load.queue_s}

    async def poll(self) -> set[Key] | None:
        """Asks all gateways; returns the services whose matters have changed, None for all.

        All are concerned when a gateway comes, goes or falls silent.
        """
        await self._look()
        asked = [g for g in self._gateways.values() if self._is_worth_asking(g)]
        found = await asyncio.gather(*map(self._ask, asked))
        self._note_reached()
        members = frozenset((g.address, self._is_fresh(g)) for g in self._ready())
        if members != self._members:
            self._members = members
            return None
        return {_key(name) for names in found for name in names if "/" in name}

    async def _look(self) -> None:
        """Looks every so often which gateways there are; does not wait long when some are known."""
        if self._discovery is None:
            if self._now() - self._discovered_at < DISCOVER_S:
                return
            self._discovery = asyncio.create_task(self._discover())
        looking = self._discovery
        await asyncio.wait([looking], timeout=ANSWER_S if self.are_known else None)
        if looking is self._discovery and looking.done():
            self._discovery = None
            if not looking.cancelled():  # as kopf does to what began while it ran, when it ends
                looking.result()

    async def _discover(self) -> None:
        try:
            slices = await self._cluster.list(
                ENDPOINT_SLICE,
                self._service.namespace,
                labels={"kubernetes.io/service-name": self._service.name},
            )
        except ClusterError as error:
            log.warning("gateways_not_listed", reason=error.message, known=len(self._gateways))
            return
        self._discovered_at = self._now()
        found: dict[str, bool] = {}
        for address, is_ready in (entry for item in slices.items for entry in _addresses(item)):
            found[address] = is_ready or found.get(address, False)
        self._gateways = {
            address: self._gateways.get(address) or _Gateway(address=address) for address in found
        }
        for address, is_ready in found.items():
            self._gateways[address].is_ready = is_ready

    async def _ask(self, gateway: _Gateway) -> set[str]:
        """Takes in what a gateway says; returns the services about which it says something new."""
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._client.get(f"http://{gateway.address}/state")
            answer.raise_for_status()
            report = read_report(answer.content)
        except (httpx.HTTPError, TimeoutError, msgspec.DecodeError) as error:
            if gateway.is_ready and not gateway.failing:
                reason = f"{type(error).__name__}: {error}"
                log.warning("gateway_silent", gateway=gateway.address, reason=reason)
            gateway.failing = True
            return set()
        if gateway.failing:
            log.info("gateway_answers_again", gateway=gateway.address)
        before, gateway.parts = gateway.parts, _parts(report)
        gateway.report, gateway.failing, gateway.asked_at = report, False, self._now()
        return {
            name
            for name in before.keys() | gateway.parts.keys()
            if _essence(before.get(name)) != _essence(gateway.parts.get(name))
        }

    def _note_reached(self) -> None:
        """Keeps for each service when its engines were reached; called with each poll."""
        now, before = self._now(), self._polled_at
        self._polled_at = now
        if not self.are_known or self.count(fresh=False) or now - before >= FRESH_S:
            self._blind_at = now
            self._reached_at.clear()
        reports = [g.report for g in self._ready() if g.report is not None and self._is_fresh(g)]
        engines = [engine for report in reports for engine in report.engines]
        self._reached_at |= {engine.service: now for engine in engines if engine.routable}

    def _ready(self) -> list[_Gateway]:
        return [gateway for gateway in self._gateways.values() if gateway.is_ready]

    def _is_worth_asking(self, gateway: _Gateway) -> bool:
        """Tells whether it may answer.

        One that is not Ready and does not has not begun yet, or has ended: to ask it would only
        delay the others' reports.
        """
        return gateway.is_ready or not gateway.failing or self._is_fresh(gateway)

    def _is_fresh(self, gateway: _Gateway) -> bool:
        return self._now() - gateway.asked_at < FRESH_S


def _addresses(endpoint_slice: Manifest) -> Iterable[tuple[str, bool]]:
    """Yields HOST:PORT of the endpoints, and whether they are ready."""
    ports = endpoint_slice.get("ports") or []
    port = next((p["port"] for p in ports if p.get("name") == PORT_NAME), DEFAULT_PORT)
    for endpoint in endpoint_slice.get("endpoints") or []:
        host = endpoint["addresses"][0]
        is_ready = (endpoint.get("conditions") or {}).get("ready") is not False
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}", is_ready


def read_report(body: bytes) -> GatewayReport:
    """Reads a report; a state that this operator does not know yet is that of a new engine."""
    raw = msgspec.json.decode(body, type=dict[str, Any])
    for engine in raw.get("engines") or ():
        if isinstance(engine, dict) and engine.get("state") not in _STATES:
            engine["state"] = "connecting"
    return msgspec.convert(raw, GatewayReport)


def _parts(report: GatewayReport) -> dict[str, GatewayReport]:
    """Cuts a report up by service."""
    engines: dict[str, list[EngineSeen]] = {}
    loads: dict[str, list[ServiceLoad]] = {}
    for engine in report.engines:
        engines.setdefault(engine.service, []).append(engine)
    for load in report.services:
        loads.setdefault(load.service, []).append(load)
    return {
        name: replace(
            report,
            engines=tuple(engines.get(name, ())),
            services=tuple(loads.get(name, ())),
        )
        for name in engines.keys() | loads.keys()
    }


def _essence(report: GatewayReport | None) -> object:
    """Returns what makes a report another one: not the numbers, which always change."""
    if report is None:
        return None
    engines = {(e.uid, e.state, e.routable, e.detail, e.numerics_id) for e in report.engines}
    loads = {
        (load.held > 0, load.in_flight > 0, _wanted(load), load.naming) for load in report.services
    }
    return engines, loads


def _wanted(load: ServiceLoad) -> bool:
    return load.wanted_age_s is not None and load.wanted_age_s < WANTED_S


def _key(service: str) -> Key:
    namespace, _, name = service.partition("/")
    return Key(namespace, name)
