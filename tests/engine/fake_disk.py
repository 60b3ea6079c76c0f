"""A disk that works when the test says so, and fails where the test says so."""

from __future__ import annotations

from collections.abc import Callable

from octavo.engine.disk_tier import DiskTier, Done
from octavo.v1.block_hash import BlockHash

Job = tuple[str, int, BlockHash, bytes]


class FakeDisk:
    """Implements `disk_tier.DiskIo` without time and threads; the content outlives a tier.

    Args:
        limit: jobs that wait at most.
        fails: whether the job with this number, counted from 0, goes wrong.
    """

    def __init__(self, limit: int = 1000, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.files: dict[BlockHash, tuple[BlockHash, bytes]] = {}
        self.reads: list[Job] = []
        self.writes: list[Job] = []
        self._parents: dict[int, BlockHash] = {}
        self._limit = limit
        self._fails = fails
        self._count = 0
        self._done: list[Done] = []

    def tier(self, capacity: int) -> DiskTier:
        """Returns a new tier over what is there."""
        return DiskTier(self, capacity, [(h, parent) for h, (parent, _) in self.files.items()])

    def crash(self) -> None:
        """Forgets what has not been done, as if the process were gone."""
        self.reads.clear()
        self.writes.clear()
        self._done.clear()

    def has_room(self) -> bool:
        return len(self.reads) + len(self.writes) < self._limit

    def write(self, ticket: int, hash_: BlockHash, parent: BlockHash, page: bytes) -> None:
        self._parents[ticket] = parent
        self.writes.append(("write", ticket, hash_, page))

    def read(self, ticket: int, hash_: BlockHash, parent: BlockHash) -> None:
        self._parents[ticket] = parent
        self.reads.append(("read", ticket, hash_, b""))

    def remove(self, hash_: BlockHash, parent: BlockHash) -> None:
        assert len(parent) in (0, 16)
        self.writes.append(("remove", 0, hash_, b""))

    def clear(self) -> None:
        self.reads.clear()
        self.writes[:] = [("clear", 0, BlockHash(b""), b"")]

    def drain(self) -> list[Done]:
        done, self._done = self._done, []
        return done

    def work(self, jobs: int = 10_000) -> None:
        """Does so many jobs, reads first."""
        for _ in range(jobs):
            queue = self.reads or self.writes
            if not queue:
                return
            self._do(*queue.pop(0))

    def _do(self, kind: str, ticket: int, hash_: BlockHash, page: bytes) -> None:
        ok = not self._fails(self._count)
        self._count += 1
        if kind == "clear":
            self.files.clear()
        elif kind == "remove":
            self.files.pop(hash_, None)
        elif kind == "write":
            if ok:
                self.files[hash_] = self._parents[ticket], page
            self._done.append(Done(ticket=ticket, hash_=hash_, ok=ok))
        else:
            _, found = self.files.get(hash_, (None, None))
            ok = ok and found is not None
            self._done.append(Done(ticket=ticket, hash_=hash_, ok=ok, page=found or b""))
