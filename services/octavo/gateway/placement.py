"""Where the attempts of one generation go: who may have the next one, and how long to wait for one.

nobody yet   the engines that are ready; while its service has none, one that may come
begun        engines of the same numerics, so that the answer stays the same; waited for
suspect      an engine on which no other suspect is
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from octavo.gateway.call import Call
from octavo.gateway.catalogue import no_engine
from octavo.gateway.delivered import Delivered
from octavo.gateway.fleet import Fleet, Need
from octavo.gateway.probation import Probation
from octavo.gateway.progress import Progress
from octavo.gateway.replica import Replica
from octavo.gateway.routing import Route
from octavo.gateway.time_bounds import TimeBounds
from octavo.runtime.env import Env
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash, extend_chain, hash_root
from octavo.v1.errors import ENGINE_FAILURE, OctavoError
from octavo.v1.validation import room_left

LOOK_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy:
    """What becomes of an answer that has begun when its engine is lost."""

    mode: str = "exact"
    """exact: only engines of the same numerics go on with it; any: others too, and the usage says
    so; never: it ends with an error."""
    wait_s: float = 8.0
    """How long to wait for an engine that can go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an attempt goes."""

    replica: Replica
    route: Route
    hashes: Sequence[BlockHash]
    """Of what is to be computed: the prompt and, resumed, the output."""


class Placement:
    """The places of one generation.

    Args:
        fleet: the engines.
        env: time.
        policy: who may resume, and how long it waits.
        probation: which engines have a suspect.
        call: what was asked for.
        request: in the engine's words.
        delivered: what its reader has.
        progress: where its attempts stand.
        bounds: how long it may take.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        env: Env,
        policy: ResumePolicy,
        probation: Probation,
        call: Call,
        request: engine_pb2.GenerateRequest,
        delivered: Delivered,
        progress: Progress,
        bounds: TimeBounds,
    ) -> None:
        self._fleet = fleet
        self._env = env
        self._policy = policy
        self._probation = probation
        self._call = call
        self._request = request
        self._delivered = delivered
        self._progress = progress
        self._bounds = bounds
        self._stopped = False
        self._error: OctavoError | None = None

    @property
    def may_come(self) -> bool:
        """Whether no engine of the service takes requests, and one may be started."""
        return self._fleet.holds(self._call.model.service)

    def stop(self, error: OctavoError | None) -> None:
        """Ends a wait: the generation has ended, with an error if there is one."""
        self._stopped, self._error = True, error

    def check_time(self) -> None:
        """Raises when the request may take no longer."""
        self._bounds.check(self._env.now(), started=self._delivered.num_tokens > 0)

    async def next(self) -> Place:
        """Returns the place of the next attempt; waits for one if need be.

        Raises:
            OctavoError: there is none, or it takes too long.
        """
        self._check_stopped()
        hashes = self._hashes()
        place = self._find(hashes, self.candidates())
        if place is None:
            with self._fleet.demand.waiting(self._call.model.service):
                place = await self._wait(hashes)
        return place

    def candidates(self) -> list[Replica]:
        """Returns the engines that may have the next attempt."""
        fleet, model, tried = self._fleet, self._call.model, self._progress.tried
        request = self._request
        room = room_left(request, model.capacity)
        output = 0 if request.score_only else room
        need = Need(
            num_tokens=len(request.token_ids.ids) + output,
            output_tokens=output,
            resumes=self._delivered.num_tokens > 0,
            beams=request.HasField("beam"),
        )
        if not self._delivered.begun:
            return fleet.candidates(model, tried, need)
        exact = replace(need, numerics_id=self._progress.delivered_by)
        found = fleet.candidates(model, tried, exact)
        if found or self._policy.mode != "any":
            return found
        return fleet.candidates(model, tried, need)

    async def _wait(self, hashes: list[BlockHash]) -> Place:
        progress, begun = self._progress, self._env.now()
        waits = progress.lost_at is not None or progress.deaths
        while True:
            candidates = self.candidates()
            if (place := self._find(hashes, candidates)) is not None:
                return place
            patience = self._policy.wait_s if waits else 0.0
            if self.may_come:
                patience = max(patience, self._fleet.demand.hold_s)
            if not candidates and self._env.now() - begun >= patience:
                model = self._call.model
                raise progress.last_error or no_engine(model.name, self._fleet.of(model.service))
            self.check_time()
            await self._probation.changed(LOOK_AGAIN_S)
            self._check_stopped()

    def _find(self, hashes: list[BlockHash], candidates: Sequence[Replica]) -> Place | None:
        """Chooses among those of the candidates that are free."""
        request, now = self._request, self._env.now()
        free = [
            replica
            for replica in candidates
            if not self._progress.deaths or self._probation.admits(replica.name, now)
        ]
        if not free:
            return None
        route = self._fleet.choose(
            free,
            hashes,
            prompt_tokens=len(request.token_ids.ids) + len(self._delivered.longest),
            block_tokens=self._call.model.card.block_tokens,
            reads_cache=not request.HasField("prompt_logprobs"),
        )
        replica = next(r for r in free if r.name == route.engine)
        return Place(replica=replica, route=route, hashes=hashes)

    def _check_stopped(self) -> None:
        if self._stopped:
            raise self._error or OctavoError(ENGINE_FAILURE)

    def _hashes(self) -> list[BlockHash]:
        request, card = self._request, self._call.model.card
        tokens = [*request.token_ids.ids, *self._delivered.longest]
        hashes: list[BlockHash] = []
        root = hash_root(card.identity, request.cache_salt)
        extend_chain(hashes, root, tokens, card.block_tokens)
        return hashes
