"""Health, readiness, metrics, request records, and a page for whoever opens the root."""

from __future__ import annotations

import math

import prometheus_client
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.gateway.fleet import Fleet
from octavo.gateway.records import Records
from octavo.v1.errors import RECORD_NOT_FOUND, OctavoError


class Status:
    """The endpoints that look at the service instead of using it."""

    def __init__(self, fleet: Fleet, records: Records, *, endpoints: list[str]) -> None:
        self._fleet = fleet
        self._records = records
        self._endpoints = endpoints

    async def root(self, request: Request) -> Response:  # noqa: ARG002
        """Names the endpoints."""
        return JSONResponse({"service": "octavo", "endpoints": self._endpoints})

    async def health(self, request: Request) -> Response:  # noqa: ARG002
        """Says that the process lives, loading or not."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Says whether requests can be served, and how far the start is."""
        readiness = self._fleet.readiness()
        body = {
            "ready": readiness.ready,
            "stage": readiness.stage,
            "eta_ms": readiness.eta_ms,
        }
        if readiness.ready:
            return JSONResponse(body)
        seconds = max(1, math.ceil(readiness.eta_ms / 1000))
        return JSONResponse(body, status_code=503, headers={"retry-after": str(seconds)})

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002
        """Returns the process's metrics in Prometheus's text format."""
        return Response(
            prometheus_client.generate_latest(), media_type=prometheus_client.CONTENT_TYPE_LATEST
        )

    async def record(self, request: Request) -> Response:
        """Returns what became of a request."""
        name = str(request.path_params["id"])[:128]
        record = await self._records.get(name.removeprefix("chatcmpl-").removeprefix("cmpl-"))
        if record is None:
            raise OctavoError(RECORD_NOT_FOUND, id=name)
        return JSONResponse(record)
