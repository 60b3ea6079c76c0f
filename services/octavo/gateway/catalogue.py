"""What is served under which name.

Without services engines say themselves under which names they serve; with services those have the
names, and one may have no engine. Knows no request.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from octavo.gateway.directory import Directory
from octavo.gateway.discovery import Service
from octavo.gateway.endpoints import ServedModel
from octavo.gateway.members import Members
from octavo.gateway.replica import Replica, stage_word
from octavo.v1 import engine_pb2
from octavo.v1.errors import MODEL_LOADING, MODEL_NOT_FOUND, NO_ENGINE, OctavoError

DEFAULT_RETRY_MS = 2000
"""Advice to come back while nothing better is known: reconnecting takes at most this long."""

MAX_LISTED: Final = 20
"""Names that the answer to an unknown one lists."""

_COMING = (engine_pb2.STAGE_LOADING, engine_pb2.STAGE_WARMING, engine_pb2.STAGE_READY)
_PROGRESS = {
    engine_pb2.STAGE_FAILED: 1,
    engine_pb2.STAGE_LOADING: 2,
    engine_pb2.STAGE_WARMING: 3,
    engine_pb2.STAGE_READY: 4,
    engine_pb2.STAGE_DRAINING: 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asleep:
    """A name of a service that has no engine to take a request."""

    name: str
    service: Service
    stage: str
    """In words, of the engine that is furthest, apart from those that leave."""


class Catalogue:
    """The names of one gateway.

    Args:
        members: the engines.
    """

    def __init__(self, members: Members) -> None:
        self.directory: Directory | None = None
        """None: there are no services."""
        self._members = members

    @property
    def services(self) -> Iterable[Service]:
        """The services that there are, oldest first."""
        return self.directory or ()

    def service_of(self, name: str) -> str:
        """Returns the service that a name means; empty when there is none, or no such name."""
        service = self.directory.find(name) if self.directory is not None else None
        return service.id if service is not None else ""

    def served(self) -> list[ServedModel]:
        """Returns every name that some engine serves now, in the order of services or engines."""
        models: dict[str, ServedModel] = {}
        if self.directory is not None:
            for service in self.directory:
                if (model := _ready_model(self._members.of(service.id))) is not None:
                    names = self.directory.names(service)
                    models |= {name: replace(model, name=name) for name in names}
            return list(models.values())
        for replica in self._members.all():
            if replica.ready and replica.model is not None:
                for name in _names(replica.model):
                    models.setdefault(name, replace(replica.model, name=name))
        return list(models.values())

    def asleep(self) -> list[Asleep]:
        """Returns the names of services without an engine that takes requests."""
        if self.directory is None:
            return []
        names = [name for each in self.directory for name in self.directory.names(each)]
        return [asleep for name in names if (asleep := self.asleep_as(name)) is not None]

    def asleep_as(self, name: str) -> Asleep | None:
        """Returns the service of a name if it has no engine that takes requests."""
        service = self.directory.find(name) if self.directory is not None else None
        if service is None or _ready_model(replicas := self._members.of(service.id)) is not None:
            return None
        staying = [replica for replica in replicas if not replica.leaving]
        return Asleep(name=name, service=service, stage=described(staying))

    def model(self, name: str) -> ServedModel:
        """Returns what is served under a name.

        Raises:
            OctavoError: MODEL_LOADING or NO_ENGINE when it may be served soon, with advice when
                to come back; MODEL_NOT_FOUND with the nearest name otherwise.
        """
        if self.directory is None:
            return self._model_of_engines(name)
        service = self.directory.find(name)
        if service is None:
            names = [name for each in self.directory for name in self.directory.names(each)]
            raise _not_found(name, names)
        replicas = self._members.of(service.id)
        if (model := _ready_model(replicas)) is not None:
            return replace(model, name=name or self.directory.names(service)[0])
        coming = [r for r in replicas if (r.stage in _COMING or _is_new(r)) and not r.leaving]
        if coming:
            raise _still_loading(coming)
        raise no_engine(name, replicas)

    def _model_of_engines(self, name: str) -> ServedModel:
        replicas = self._members.all()
        known = [r for r in replicas if r.model and name in _names(r.model)]
        for replica in known:
            if replica.ready and replica.model is not None:
                return replace(replica.model, name=name)
        coming = [r for r in replicas if r.stage in _COMING and not r.ready]
        names = list(dict.fromkeys(n for r in replicas if r.model for n in _names(r.model)))
        if not names:
            # Before the first contact an engine counts as one that loads.
            coming += filter(_is_new, replicas)
        elif not known:
            # A name that nobody knows may be that of an engine which has not shown its card.
            coming = [r for r in coming if r.model is None]
        if coming:
            raise _still_loading(coming)
        if known or not names:
            raise no_engine(name, replicas)
        raise _not_found(name, names)


def no_engine(name: str, replicas: Iterable[Replica]) -> OctavoError:
    """Returns that none of the engines under a name can be reached, and why if that is known.

    What keeps those away that leave is no reason: the next ones may have another certificate.
    """
    whys = (f": {each.distrust}" for each in replicas if each.distrust and not each.leaving)
    return OctavoError(NO_ENGINE, model=name, why=next(whys, ""), retry_after_ms=DEFAULT_RETRY_MS)


def furthest(replicas: Sequence[Replica]) -> Replica | None:
    """Returns the engine that is nearest to being ready."""
    return max(replicas, key=lambda r: _PROGRESS.get(r.stage, 0), default=None)


def described(replicas: Sequence[Replica]) -> str:
    """Returns in words how far the furthest of the engines is."""
    replica = furthest(replicas)
    if replica is None:
        return "there is no engine"
    if replica.stage == engine_pb2.STAGE_READY:
        return replica.problem or "connecting"
    if replica.distrust:
        return replica.distrust
    if not replica.epoch:
        return "waiting for an engine"
    word = stage_word(replica.stage)
    return f"{word}: {replica.detail}" if replica.detail else word


def _is_new(replica: Replica) -> bool:
    """Tells whether it was never reached, and may be."""
    return not replica.epoch and not replica.distrust


def _ready_model(replicas: Iterable[Replica]) -> ServedModel | None:
    return next((r.model for r in replicas if r.ready), None)


def _names(model: ServedModel) -> Sequence[str]:
    return model.card.served_names or [model.card.model]


def _still_loading(replicas: Sequence[Replica]) -> OctavoError:
    first = min(replicas, key=lambda r: r.eta_ms or DEFAULT_RETRY_MS)
    return OctavoError(
        MODEL_LOADING,
        stage=described([first]),
        retry_after_ms=first.eta_ms or DEFAULT_RETRY_MS,
    )


def _not_found(name: str, names: Sequence[str]) -> OctavoError:
    near = difflib.get_close_matches(name[:200], names, n=1)
    served = ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
    return OctavoError(
        MODEL_NOT_FOUND,
        param="model",
        model=name[:200],
        served=served,
        closest=f"; did you mean {near[0]}?" if near else "",
    )
