"""The listener for whoever watches a gateway: probes, metrics, and the state for the operator.

It is apart from the API, so that clients need not reach it, and answers until the process ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from octavo.gateway.api.status import Status


class StatusServer(uvicorn.Server):
    """Serves /healthz, /readyz, /metrics and /state.

    Args:
        status: the endpoints that the API has, too.
        state: what /state shows.
    """

    def __init__(self, status: Status, state: Callable[[], dict[str, object]]) -> None:
        self._state = state
        routes = [
            Route("/healthz", status.health),
            Route("/readyz", status.ready),
            Route("/metrics", status.metrics),
            Route("/state", self._show_state),
        ]
        super().__init__(
            uvicorn.Config(
                Router(routes, redirect_slashes=False),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Takes none: they are the API server's."""
        yield

    async def _show_state(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse(self._state())
