"""The engines of a gateway, as discovery finds them: is anything ready, and who takes a request.

Which names mean what is said in `catalogue`. Knows no request beyond its hashes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from octavo.gateway.catalogue import Catalogue, described, furthest
from octavo.gateway.demand import Demand
from octavo.gateway.directory import Directory
from octavo.gateway.discovery import Discovered, Discovery
from octavo.gateway.endpoints import Readiness, ServedModel
from octavo.gateway.members import FORGET_S, Connect, Members
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.replica import Replica, stage_word
from octavo.gateway.routing import Route, choose
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash
from octavo.v1.features import FEATURE_BEAM, FEATURE_RESUME

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What an engine must have to take a request, or to go on with what another one has begun."""

    num_tokens: int = 0
    """Prompt and output together, at most."""
    output_tokens: int = 0
    """Of these at most the output."""
    resumes: bool = False
    beams: bool = False
    numerics_id: str | None = None
    """Must be equal, on an engine that is exact; None: the answer may change its course."""

    def is_met_by(self, card: engine_pb2.ModelCard) -> bool:
        """Whether an engine with this card will do."""
        if card.max_model_len < self.num_tokens:
            return False
        if 0 < card.max_output_tokens < self.output_tokens:
            return False
        if self.resumes and not card.features & FEATURE_RESUME:
            return False
        if self.beams and not card.features & FEATURE_BEAM:
            return False
        return self.numerics_id is None or (card.exact and card.numerics_id == self.numerics_id)


class Fleet:
    """All engines of one gateway.

    Args:
        discovery: tells where they are.
        connect: makes the replica of one.
        demand: holds requests for services without engines.
        metrics: forgets engines and names that are gone.
    """

    def __init__(
        self, discovery: Discovery, connect: Connect, *, demand: Demand, metrics: GatewayMetrics
    ) -> None:
        self.demand = demand
        self._discovery = discovery
        self._metrics = metrics
        self._members = Members(connect, on_ready=demand.release, forget=metrics.forget_engine)
        self.catalogue = Catalogue(self._members)
        self._found = False
        self._leaving = self._draining = False
        self._turn = 0

    @property
    def draining(self) -> bool:
        """Whether the gateway takes no new requests but the last ones of its connections."""
        return self._draining

    @property
    def replicas(self) -> list[Replica]:
        """Every engine, in the order in which they were found."""
        return self._members.all()

    def leave(self) -> None:
        """Makes the gateway unready; it goes on as before until it drains."""
        self._leaving = True

    def drain(self) -> None:
        """Has no request wait for an engine any more; running ones go on."""
        self._leaving = self._draining = True
        self._release()

    async def run(self) -> None:
        """Finds engines and keeps them connected until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            await self._discovery.run(lambda found: self._take(found, tasks))

    def states(self) -> Mapping[str, int]:
        """Returns the number of engines by state."""
        return Counter(map(_state, self.replicas))

    def of(self, service: str) -> Sequence[Replica]:
        """Returns the engines of a service; of an empty name, those that belong to none."""
        return self._members.of(service)

    def holds(self, service: str) -> bool:
        """Whether requests for a service wait: engines may come, and none takes requests yet."""
        directory = self.catalogue.directory
        known = directory.get(service) if directory is not None else None
        if known is None or not known.may_come or self._draining:
            return False
        replicas = [replica for replica in self.of(service) if not replica.leaving]
        if replicas and all(replica.distrust for replica in replicas):
            return False  # no engine that could come would be trusted more
        return not any(replica.ready for replica in replicas)

    def served(self) -> list[ServedModel]:
        """Returns every name that some engine serves now; see Catalogue."""
        return self.catalogue.served()

    def model(self, name: str) -> ServedModel:
        """Returns what is served under a name, or raises why nothing is; see Catalogue."""
        return self.catalogue.model(name)

    def readiness(self) -> Readiness:
        """Returns whether requests are served, and else the engine that is furthest.

        With services a gateway is ready as soon as it knows them: none of them need have an engine.
        """
        if self._leaving:
            return Readiness(ready=False, stage="draining")
        if not self._found:
            return Readiness(ready=False, stage="looking for engines")
        replicas = self.replicas
        if self.catalogue.directory is not None or any(r.ready for r in replicas):
            return Readiness(ready=True, stage="ready")
        first = furthest(replicas)
        eta_ms = 0 if first is None else first.eta_ms
        return Readiness(ready=False, stage=described(replicas), eta_ms=eta_ms)

    def candidates(
        self, model: ServedModel, tried: Collection[tuple[str, int]], need: Need
    ) -> list[Replica]:
        """Returns the engines that may take a request now.

        Args:
            model: what they serve.
            tried: incarnations that shall not have it.
            need: what it takes.
        """
        return [
            replica
            for replica in self._members.of(model.service)
            if replica.ready
            and replica.incarnation not in tried
            and replica.model is not None
            and replica.model.identity == model.identity
            and need.is_met_by(replica.model.card)
        ]

    def choose(
        self,
        candidates: Sequence[Replica],
        hashes: Sequence[BlockHash],
        *,
        prompt_tokens: int,
        block_tokens: int,
        reads_cache: bool,
    ) -> Route:
        """Returns the way to the cheapest of the candidates, of which there is one at least."""
        self._turn += 1
        return choose(
            [replica.view(hashes, reads_cache=reads_cache) for replica in candidates],
            prompt_tokens=prompt_tokens,
            block_tokens=block_tokens,
            turn=self._turn,
        )

    def _take(self, found: Discovered, tasks: asyncio.TaskGroup) -> None:
        """Follows what there is now."""
        self._found = True
        self._members.update(found.endpoints, tasks)
        if found.services is None:
            return
        before, directory = self.catalogue.directory, Directory(found.services)
        self.catalogue.directory = directory
        gone = set(_all_names(before)) - set(_all_names(directory))
        if gone:
            asyncio.get_running_loop().call_later(FORGET_S, self._forget, gone)
        self.demand.keep({service.id for service in directory})
        self._release()

    def _release(self) -> None:
        """Lets whoever is held see whether there still is something to wait for."""
        for service in self.catalogue.services:
            self.demand.release(service.id)

    def _forget(self, names: Collection[str]) -> None:
        for name in set(names) - set(_all_names(self.catalogue.directory)):
            self._metrics.forget_model(name)


def _all_names(directory: Directory | None) -> Collection[str]:
    return directory.all_names() if directory is not None else ()


def _state(replica: Replica) -> str:
    if replica.suspected:
        return "suspected"
    return "draining" if replica.leaving else stage_word(replica.stage)
