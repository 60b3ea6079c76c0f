"""The operator's HTTP server: /healthz and /readyz for probes, /metrics for scrapes."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from octavo.operator.health import Health
from octavo.v1.errors import BAD_SETTING, PORT_IN_USE, OctavoError


class StatusServer:
    """Answers probes and scrapes.

    Args:
        registry: what /metrics shows.
        health: how the operator is now.
    """

    def __init__(self, registry: CollectorRegistry, health: Callable[[], Health]) -> None:
        self._registry = registry
        self._health = health
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0
        )

    async def start(self, listen: str) -> int:
        """Listens; returns the port.

        Raises:
            OctavoError: BAD_SETTING or PORT_IN_USE.
        """
        host, _, port = listen.rpartition(":")
        if not (port.isascii() and port.isdigit()):
            raise OctavoError(
                BAD_SETTING,
                key="status_listen",
                value=listen,
                origin="operator",
                reason="is not HOST:PORT",
            )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]") or None, int(port)).start()
        except OSError as error:
            await self.stop()
            raise OctavoError(PORT_IN_USE, port=port, host=host) from error
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stops listening."""
        await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        health = self._health()
        return _answer(health, good=health.alive)

    async def _readyz(self, _request: web.Request) -> web.Response:
        health = self._health()
        return _answer(health, good=health.alive and health.ready)

    async def _metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(health: Health, *, good: bool) -> web.Response:
    shown = {
        "ready": health.ready,
        "stuck": health.stuck,
        "ages_s": {name: round(age, 1) for name, age in health.ages.items()},
    }
    return web.json_response(shown, status=200 if good else 503)
