"""An HTTP server that answers as a test says: the far side of `octavo chat`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DONE = "data: [DONE]\n\n"


def chunk(text: str = "", finish: str | None = None, **more: object) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice], 'usage': None} | more)}\n\n"


def usage(**counts: int) -> str:
    return f"data: {json.dumps({'choices': [], 'usage': counts})}\n\n"


class ApiStandIn:
    """Scripted answers, and the bodies of the requests."""

    def __init__(self) -> None:
        self.url = ""
        self.models: list[str] = ["first", "second"]
        self.stream: list[str] = [chunk("Hello"), chunk(", you", "stop"), usage(x=3), DONE]
        self.status: dict[str, object] = {"ready": True, "stage": "ready", "eta_ms": 0}
        self.refusal: tuple[int, object] | None = None
        self.asked: list[dict[str, object]] = []
        self.gate = threading.Event()
        """The stream waits for it before the second event."""
        self.gate.set()


@contextmanager
def api_stand_in() -> Iterator[ApiStandIn]:
    api = ApiStandIn()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("x-octavo-route", "engine-0")
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            data = [{"id": model} for model in api.models]
            body = json.dumps({"data": data, "status": api.status}).encode()
            self.send(200, body, "application/json")

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            api.asked.append(json.loads(self.rfile.read(length)))
            if api.refusal is not None:
                status, answer = api.refusal
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send(status, body, "application/json")
                return
            self.send(200, b": heartbeat\n\n", "text/event-stream")
            for i, event in enumerate(api.stream):
                if i == 1:
                    api.gate.wait()
                self.wfile.write(event.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        api.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
