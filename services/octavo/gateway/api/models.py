"""`/v1/models` and `/v1/models/{id}`: one object that clients of OpenAI and Anthropic both read.

A service without an engine is listed too: a request for it starts one. Nobody can say yet what its
model is like.
"""

from __future__ import annotations

import datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.gateway.catalogue import Asleep
from octavo.gateway.endpoints import Readiness, ServedModel
from octavo.gateway.fleet import Fleet

_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class Models:
    """The two endpoints."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def index(self, request: Request) -> Response:  # noqa: ARG002
        """Lists every served name; while nothing is served, says how far the start is."""
        readiness = self._fleet.readiness()
        data = [model_object(m, readiness) for m in self._fleet.served()]
        data += [asleep_object(a) for a in self._fleet.catalogue.asleep()]
        return JSONResponse(
            {
                "object": "list",
                "data": data,
                "has_more": False,
                "first_id": data[0]["id"] if data else None,
                "last_id": data[-1]["id"] if data else None,
                "status": _status(readiness),
            }
        )

    async def show(self, request: Request) -> Response:
        """Shows one model; its id may hold slashes."""
        name = request.path_params["id"]
        if (asleep := self._fleet.catalogue.asleep_as(name)) is not None:
            return JSONResponse(asleep_object(asleep))
        return JSONResponse(model_object(self._fleet.model(name), self._fleet.readiness()))


def asleep_object(asleep: Asleep) -> dict[str, object]:
    """Returns the entry of a service that has no engine."""
    readiness = Readiness(ready=False, stage=asleep.stage)
    return _common(asleep.name, asleep.service.created_unix_s, readiness)


def model_object(model: ServedModel, readiness: Readiness) -> dict[str, object]:
    """Returns a model's entry."""
    card = model.card
    return {
        **_common(model.name, card.created_unix_s, readiness),
        "root": card.model,
        "max_model_len": card.max_model_len,
        "default_sampling": default_sampling(model),
        "dtype": card.dtype,
        "exact": card.exact,
        "numerics_id": card.numerics_id,
        "tokenizer": model.tokenizer.backend,
    }


def default_sampling(model: ServedModel) -> dict[str, float]:
    """Returns what holds where a request is silent."""
    defaults = model.card.default_sampling
    return {
        name: round(float(getattr(defaults, name)), 6)
        for name in _DEFAULTS
        if any(field.name == name for field, _ in defaults.ListFields())
    }


def _common(name: str, created_unix_s: int, readiness: Readiness) -> dict[str, object]:
    created = datetime.datetime.fromtimestamp(created_unix_s, datetime.UTC)
    return {
        "id": name,
        "object": "model",
        "created": created_unix_s,
        "owned_by": "octavo",
        "parent": None,
        "type": "model",
        "display_name": name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "status": _status(readiness),
    }


def _status(readiness: Readiness) -> dict[str, object]:
    return {"ready": readiness.ready, "stage": readiness.stage, "eta_ms": readiness.eta_ms}
