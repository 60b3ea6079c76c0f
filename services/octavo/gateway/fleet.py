"""The engines of the configuration, and the models that they serve together.

Answers three questions: what is served, is anything ready, and which engine takes this request.
Knows no request beyond its hashes.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from octavo.gateway.endpoints import Readiness, ServedModel
from octavo.gateway.replica import Replica, stage_word
from octavo.gateway.routing import Route, choose
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import MODEL_LOADING, MODEL_NOT_FOUND, NO_ENGINE, OctavoError
from octavo.v1.features import FEATURE_RESUME

DEFAULT_RETRY_MS = 2000
"""Advice to come back while nothing better is known: reconnecting takes at most this long."""

_COMING = (engine_pb2.STAGE_LOADING, engine_pb2.STAGE_WARMING, engine_pb2.STAGE_READY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What an engine must have to take a request, or to go on with what another one has begun."""

    num_tokens: int = 0
    """Prompt and output together, at most."""
    resumes: bool = False
    numerics_id: str | None = None
    """Must be equal, on an engine that is exact; None: the answer may change its course."""

    def is_met_by(self, card: engine_pb2.ModelCard) -> bool:
        """Whether an engine with this card will do."""
        if card.max_model_len < self.num_tokens:
            return False
        if self.resumes and not card.features & FEATURE_RESUME:
            return False
        return self.numerics_id is None or (card.exact and card.numerics_id == self.numerics_id)


class Fleet:
    """All engines of one gateway.

    Args:
        replicas: one for each configured address.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = {replica.name: replica for replica in replicas}
        self._draining = False
        self._turn = 0

    @property
    def draining(self) -> bool:
        """Whether the gateway takes no new requests."""
        return self._draining

    def drain(self) -> None:
        """Makes the gateway unready; running requests go on."""
        self._draining = True

    async def run(self) -> None:
        """Keeps every engine connected until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for replica in self._replicas.values():
                tasks.create_task(replica.run())

    def states(self) -> Mapping[str, int]:
        """Returns the number of engines by state."""
        return Counter(
            "suspected" if r.suspected else stage_word(r.stage) for r in self._replicas.values()
        )

    def served(self) -> list[ServedModel]:
        """Returns every name that some engine serves now, in the order of the configuration."""
        models: dict[str, ServedModel] = {}
        for replica in self._replicas.values():
            if replica.ready and replica.model is not None:
                for name in _names(replica.model):
                    models.setdefault(name, replace(replica.model, name=name))
        return list(models.values())

    def model(self, name: str) -> ServedModel:
        """Returns what is served under a name.

        Raises:
            OctavoError: MODEL_LOADING or NO_ENGINE when it may be served soon, with advice when
                to come back; MODEL_NOT_FOUND with the nearest name otherwise.
        """
        known = [r for r in self._replicas.values() if r.model and name in _names(r.model)]
        for replica in known:
            if replica.ready and replica.model is not None:
                return replace(replica.model, name=name)
        coming = [r for r in self._replicas.values() if r.stage in _COMING and not r.ready]
        names = self._known_names()
        if not names:
            # Before the first contact an engine counts as one that loads.
            coming += [r for r in self._replicas.values() if not r.epoch]
        elif not known:
            # A name that nobody knows may be that of an engine which has not shown its card.
            coming = [r for r in coming if r.model is None]
        if coming:
            raise self._still_loading(coming)
        if known or not names:
            raise OctavoError(NO_ENGINE, model=name, retry_after_ms=DEFAULT_RETRY_MS)
        near = difflib.get_close_matches(name, names, n=1)
        raise OctavoError(
            MODEL_NOT_FOUND,
            param="model",
            model=name[:200],
            served=", ".join(names),
            closest=f"; did you mean {near[0]}?" if near else "",
        )

    def readiness(self) -> Readiness:
        """Returns whether any engine takes requests, and else the one that is furthest."""
        if self._draining:
            return Readiness(ready=False, stage="draining")
        replicas = list(self._replicas.values())
        if any(r.ready for r in replicas):
            return Readiness(ready=True, stage="ready")
        furthest = max(replicas, key=lambda r: _PROGRESS.get(r.stage, 0), default=None)
        if furthest is None:
            return Readiness(ready=False, stage="no engine is configured")
        return Readiness(ready=False, stage=_described(furthest), eta_ms=furthest.eta_ms)

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
            for replica in self._replicas.values()
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

    def _known_names(self) -> list[str]:
        return list(
            dict.fromkeys(n for r in self._replicas.values() if r.model for n in _names(r.model))
        )

    def _still_loading(self, replicas: Sequence[Replica]) -> OctavoError:
        first = min(replicas, key=lambda r: r.eta_ms or DEFAULT_RETRY_MS)
        return OctavoError(
            MODEL_LOADING,
            stage=_described(first),
            retry_after_ms=first.eta_ms or DEFAULT_RETRY_MS,
        )


_PROGRESS: Mapping[int, int] = {
    engine_pb2.STAGE_FAILED: 1,
    engine_pb2.STAGE_LOADING: 2,
    engine_pb2.STAGE_WARMING: 3,
    engine_pb2.STAGE_READY: 4,
    engine_pb2.STAGE_DRAINING: 0,
}


def _names(model: ServedModel) -> Sequence[str]:
    return model.card.served_names or [model.card.model]


def _described(replica: Replica) -> str:
    if replica.stage == engine_pb2.STAGE_READY:
        return "connecting"
    if not replica.epoch:
        return "waiting for an engine"
    word = stage_word(replica.stage)
    return f"{word}: {replica.detail}" if replica.detail else word
