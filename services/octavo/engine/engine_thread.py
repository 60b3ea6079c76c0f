"""The engine's one thread: loads the model, then steps for ever. Others of ours only do I/O."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from octavo.engine.stepper import HEARTBEAT_S, Stepper

log = structlog.get_logger(__name__)


class EngineThread:
    """Runs `load` and then the stepper that it returned.

    Args:
        load: builds the stepper on this thread; an exception ends the thread.
        failed: gets that exception, or one that a turn let through, on this thread.
    """

    def __init__(
        self, load: Callable[[], Stepper], failed: Callable[[BaseException], None]
    ) -> None:
        self.stepper: Stepper | None = None
        self._load = load
        self._failed = failed
        self._news = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Begins loading."""
        self._thread.start()

    def wake(self) -> None:
        """Ends the wait of an idle stepper; callable from any thread."""
        self._news.set()

    def stop(self) -> None:
        """Ends the thread after its present turn and waits for it."""
        self._stop = True
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _main(self) -> None:
        try:
            self.stepper = self._load()
            while not self._stop:
                if not self.stepper.turn():
                    self._news.wait(HEARTBEAT_S)
                self._news.clear()
        except BaseException as error:  # the outermost loop of this thread
            log.exception("engine_thread_failed")
            self._failed(error)
