"""The thread that does the disk's work, with a bounded queue before it.

Reads go first: a request waits for them, and nobody for a write. Errors of the disk are answers,
not exceptions: the engine serves on without it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from octavo.engine.disk_format import DamagedBlockError
from octavo.engine.disk_store import DiskStore
from octavo.engine.disk_tier import Done
from octavo.v1.block_hash import BlockHash

log = structlog.get_logger(__name__)

MAX_QUEUED: Final = 64
"""Pages that wait in memory: some ten to a hundred MB, and a second of a slow disk."""

_Job = Callable[[], Done | None]


class DiskThread:
    """Implements `disk_tier.DiskIo`.

    Args:
        store: the folder; used by this thread alone from now on.
        wake: called on the thread after each read or write that is done.
        limit: reads and writes that wait at most; removals are never refused.
    """

    def __init__(
        self, store: DiskStore, wake: Callable[[], None], *, limit: int = MAX_QUEUED
    ) -> None:
        self._store = store
        self._wake = wake
        self._limit = limit
        self._reads: deque[_Job] = deque()
        self._writes: deque[_Job] = deque()  # and removals
        self._done: deque[Done] = deque()
        self._news = threading.Condition()
        self._closed = False
        self._failing = False
        self._thread = threading.Thread(target=self._main, name="disk", daemon=True)

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    def close(self) -> None:
        """Does what is queued, ends the thread and waits for it."""
        with self._news:
            self._closed = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def has_room(self) -> bool:
        """See `DiskIo`."""
        return len(self._reads) + len(self._writes) < self._limit

    def write(self, ticket: int, hash_: BlockHash, parent: BlockHash, page: bytes) -> None:
        """See `DiskIo`."""

        def job() -> Done:
            self._store.write(hash_, parent, page)
            return Done(ticket=ticket, hash_=hash_, ok=True)

        self._put(self._writes, ticket, hash_, job)

    def read(self, ticket: int, hash_: BlockHash, parent: BlockHash) -> None:
        """See `DiskIo`."""

        def job() -> Done:
            page = self._store.read(hash_, parent)
            return Done(ticket=ticket, hash_=hash_, ok=True, page=page)

        self._put(self._reads, ticket, hash_, job)

    def remove(self, hash_: BlockHash, parent: BlockHash) -> None:
        """See `DiskIo`."""
        self._put(self._writes, 0, hash_, partial(self._store.remove, hash_, parent))

    def clear(self) -> None:
        """See `DiskIo`."""
        with self._news:
            self._writes.clear()
            self._reads.clear()
        self._put(self._writes, 0, BlockHash(b""), self._store.clear)

    def drain(self) -> list[Done]:
        """See `DiskIo`."""
        done: list[Done] = []
        while self._done:
            done.append(self._done.popleft())
        return done

    def _put(self, queue: deque[_Job], ticket: int, hash_: BlockHash, job: _Job) -> None:
        def guarded() -> Done | None:
            try:
                answer = job()
            except (OSError, DamagedBlockError) as error:
                self._tell(error)
                return Done(ticket=ticket, hash_=hash_, ok=False) if ticket else None
            self._failing = False
            return answer

        with self._news:
            queue.append(guarded)
            self._news.notify()

    def _tell(self, error: Exception) -> None:
        """Logs the first of a row of failures: a full disk fails with every block."""
        if not self._failing:
            log.warning("disk_cache_failed", reason=str(error))
        self._failing = True

    def _main(self) -> None:
        while True:
            with self._news:
                while not self._reads and not self._writes:
                    if self._closed:
                        return
                    self._news.wait()
                job = (self._reads or self._writes).popleft()
            done = job()
            if done is not None:
                self._done.append(done)
                self._wake()
