"""What a gateway knows of engines and demand, for whoever makes pods routable and scales services.

Tells nothing of single requests.
"""

from __future__ import annotations

from octavo.gateway.discovery import Service
from octavo.gateway.fleet import Fleet
from octavo.gateway.queue_time import queue_s, share_in_use
from octavo.gateway.replica import Replica, stage_word
from octavo.v1 import engine_pb2


def report(fleet: Fleet, *, gateway: str, uptime_s: float) -> dict[str, object]:
    """Returns the present state.

    Args:
        fleet: engines, services and demand.
        gateway: which process this is.
        uptime_s: how long it runs: of requests before that it knows nothing.
    """
    return {
        "gateway": gateway,
        "uptime_s": round(uptime_s, 3),
        "engines": [_engine(replica) for replica in fleet.replicas],
        "services": [
            _service(fleet, service.id) | _naming(fleet, service)
            for service in fleet.catalogue.services
        ],
    }


def state_of(replica: Replica) -> str:
    """Returns how an engine stands, in one word."""
    if replica.leaving:
        return "draining"
    if replica.suspected:
        return "suspected"
    if replica.stage == engine_pb2.STAGE_UNSPECIFIED:
        return "lost" if replica.epoch else "connecting"
    if replica.stage == engine_pb2.STAGE_READY and not replica.ready:
        return "connecting"
    return stage_word(replica.stage)


def _engine(replica: Replica) -> dict[str, object]:
    endpoint = replica.endpoint
    return {
        "address": endpoint.address,
        "uid": endpoint.uid,
        "pod": endpoint.pod.rpartition("/")[2],
        "service": endpoint.service,
        "state": state_of(replica),
        "routable": replica.ready,
        "in_flight": replica.table.in_flight,
        "detail": replica.problem or replica.detail,
        "numerics_id": replica.numerics_id,
        "exact": replica.model is None or replica.model.card.exact,
    }


def _naming(fleet: Fleet, service: Service) -> dict[str, object]:
    """Returns by which names requests reach a service, and who else claims these."""
    directory = fleet.catalogue.directory
    if directory is None:
        return {}
    contest = directory.contest(service)
    return {
        "naming": {
            "names": directory.names(service),
            "lost": tuple(contest.lost.items()),
            "heirs": tuple(contest.heirs.items()),
        }
    }


def _service(fleet: Fleet, service: str) -> dict[str, object]:
    figures, replicas = fleet.demand.figures(service), fleet.of(service)
    queues = [replica.queue() for replica in replicas if replica.ready]
    age_s = figures.wanted_age_s
    return {
        "service": service,
        "in_flight": sum(replica.table.in_flight for replica in replicas),
        "held": figures.held,
        "queue_s": round(min((queue_s(q, figures.place_s) for q in queues), default=0.0), 4),
        "in_use": round(sum(map(share_in_use, queues)), 4),
        "arrivals_per_s": round(figures.arrivals_per_s, 4),
        "wanted_age_s": None if age_s is None else round(age_s, 3),
        "prompt_tokens": figures.prompt_tokens,
        "cached_tokens": figures.cached_tokens,
    }
