"""A gateway's /state on a thread of its own, that says what the test wants."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

NOWHERE = "192.0.2.1"
"""Address that the gateway's endpoint has in the cluster, which takes no loopback address."""


class FakeGateway:
    """The status server of one gateway.

    Attributes:
        engines: entries of its report.
        services: entries of its report.
    """

    def __init__(self) -> None:
        self.engines: list[dict[str, Any]] = []
        self.services: list[dict[str, Any]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(gateway.state).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def state(self) -> dict[str, object]:
        return {"gateway": "fake", "engines": self.engines, "services": self.services}

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def endpoints(self, service: str) -> dict[str, Any]:
        """Returns the EndpointSlice that makes it an endpoint of a Service."""
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "status", "port": self.port}],
            "endpoints": [{"addresses": [NOWHERE], "conditions": {"ready": True}}],
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
