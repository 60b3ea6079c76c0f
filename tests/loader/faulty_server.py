"""An HTTP server with byte ranges that can be told to fail in many ways, at an exact byte."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

_PIECE = 16 * 1024


@dataclass(kw_only=True)
class Fault:
    """What goes wrong with some requests."""

    kind: Literal["cut", "wrong", "status", "redirect", "no_ranges", "other_range", "slow", "hang"]
    path: str = ""
    """Regular expression; the paths that it is found in."""
    times: int = 1_000_000
    at: int = 0
    """Byte of the content, counted from its start, where a cut or a wrong byte is."""
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    pause_s: float = 0.01
    """Between two pieces of a slow answer."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request that came."""

    method: str
    path: str
    range: str
    authorization: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a server says when nothing goes wrong."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class FaultyServer(ThreadingHTTPServer):
    """Answers by `answer`; an interruption calls a function when so many bytes were sent."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.sent = 0
        self.is_down = False
        """Whether answers break off where they are, and new requests get 503."""
        self.runs = 0
        """Interruptions that were asked for; answers begun before the last one do not count."""
        self._interruption: tuple[int, Callable[[], None]] | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, query: str, headers: Mapping[str, str]) -> Answer:
        raise NotImplementedError

    def interrupt(self, after: int, act: Callable[[], None]) -> None:
        """Calls `act` once, when so many more bytes of content have been sent."""
        with self._lock:
            self.runs += 1
            self._interruption = (self.sent + after, act)

    @contextmanager
    def stalled(self, after: int) -> Iterator[threading.Event]:
        """Sends so many more bytes, then nothing until the end of the block.

        The event says that it stalls.
        """
        reached, over = threading.Event(), threading.Event()

        def stall() -> None:
            reached.set()
            over.wait(60)

        self.interrupt(after, stall)
        try:
            yield reached
        finally:
            over.set()

    def take(self, path: str, kinds: tuple[str, ...]) -> Fault | None:
        """Returns the first fault for a path, which is used up by that."""
        with self._lock:
            for fault in self.faults:
                if fault.kind in kinds and fault.times > 0 and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def allowance(self, run: int, wanted: int) -> int:
        """Returns how many bytes may be sent before the interruption, and calls it at its byte."""
        with self._lock:
            if run != self.runs:
                return wanted
            if self._interruption is not None:
                at, act = self._interruption
                if self.sent >= at:
                    self._interruption = None
                    act()
                else:
                    wanted = min(wanted, at - self.sent)
            self.sent += wanted
            return wanted

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are killed here; their end is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyServer

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.server.asked.append(
            Asked(
                method=self.command,
                path=path,
                range=self.headers.get("Range", ""),
                authorization=self.headers.get("Authorization", ""),
            )
        )
        fault = self.server.take(path, ("status", "redirect", "hang"))
        if self.server.is_down:
            fault = Fault(kind="status")
        if fault is not None and fault.kind == "hang":
            time.sleep(1)
        if fault is not None:
            status = fault.status if fault.kind == "status" else 302
            self._send(path, Answer(status=status, headers=fault.headers))
        else:
            self._send(path, self.server.answer(path, parts.query, dict(self.headers)))

    def _send(self, path: str, answer: Answer) -> None:
        start, end, status = 0, len(answer.body), answer.status
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        ranged = wanted is not None and status == 200
        if ranged and self.server.take(path, ("no_ranges",)) is None:
            assert wanted is not None
            start = int(wanted[1])
            end = min(end, int(wanted[2]) + 1 if wanted[2] else end)
            if self.server.take(path, ("other_range",)) is not None:
                start = max(0, start - 1)
            status = 206
        self.send_response(status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(answer.body)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(path, answer.body, start, end)

    def _send_body(self, path: str, body: bytes, start: int, end: int) -> None:
        if start >= end:
            return
        run = self.server.runs
        cut = self.server.take(path, ("cut",))
        wrong = self.server.take(path, ("wrong",))
        slow = self.server.take(path, ("slow",))
        if wrong is not None:
            body = body[: wrong.at] + bytes([body[wrong.at] ^ 1]) + body[wrong.at + 1 :]
        if cut is not None:
            end = max(start, min(end, cut.at))
        while start < end:
            size = self.server.allowance(run, min(_PIECE, end - start))
            if self.server.is_down:
                self.close_connection = True
                return
            self.wfile.write(body[start : start + size])
            self.wfile.flush()
            start += size
            if slow is not None:
                time.sleep(slow.pause_s)
        if cut is not None:
            self.close_connection = True


@contextmanager
def serving(server: FaultyServer) -> Iterator[FaultyServer]:
    """Runs a server in a thread of its own."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
