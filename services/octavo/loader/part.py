"""One file of a model on its way to the disk: goes on where it ended, and knows its digests.

What is in the file is never trusted because it is there: it is hashed before more is written behind
it. Bytes are written at their own place, so two writers of the same content harm nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from octavo.loader.source import RemoteFile
from octavo.runtime.manifest import FileEntry

_SYNC_BYTES: Final = 64 << 20
"""Written to the disk in pieces of this size, so that no single wait for it is long."""
_READ_BYTES: Final = 1 << 20
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Part:
    """The local half of one remote file; its descriptor is open until `close`.

    Raises:
        OSError: the volume fails, or something else than a file has its name.
    """

    def __init__(self, folder: Path, file: RemoteFile) -> None:
        self._path = folder / file.name
        self._file = file
        self._descriptor = self._open()
        self._start_over()

    @property
    def size(self) -> int:
        """Bytes that are there and hashed; not more than the file has in the end."""
        return self._size

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there; they may still be the wrong ones."""
        return self._size == self._file.size

    async def resume(self, told: Callable[[int], None]) -> None:
        """Hashes what an earlier run left; `told` gets the sizes of the pieces."""
        length = os.fstat(self._descriptor).st_size
        if length > self._file.size:
            self.discard()
            return
        while self._size < length:
            data = os.pread(self._descriptor, _READ_BYTES, self._size)
            if not data:
                break
            self._take(data)
            told(len(data))
            await asyncio.sleep(0)
        self._synced = self._size

    def write(self, data: bytes) -> None:
        """Puts bytes behind the others; what would be too much is left out."""
        view = memoryview(data)[: self._file.size - self._size]
        while view:
            written = os.pwrite(self._descriptor, view, self._size)
            self._take(view[:written])
            view = view[written:]
        if self._size - self._synced >= _SYNC_BYTES:
            os.fdatasync(self._descriptor)
            self._synced = self._size

    def problem(self) -> str:
        """Returns why the content of a whole file is not what its source says; empty if it is."""
        for kind, wanted in (
            ("sha256", self._file.sha256),
            ("git_sha1", self._file.git_sha1),
            ("md5", self._file.md5),
        ):
            if wanted and self._digests[kind].hexdigest() != wanted:
                return f"its {kind.replace('_', ' ')} is {self._digests[kind].hexdigest()}"
        return ""

    def discard(self) -> None:
        """Throws the content away. Who still reads the old file keeps it as it is."""
        self._path.unlink(missing_ok=True)
        before, self._descriptor = self._descriptor, self._open()
        os.close(before)
        self._start_over()

    def finish(self) -> FileEntry:
        """Writes everything to the disk and returns what the manifest says of the file."""
        os.fsync(self._descriptor)
        return FileEntry(size=self._size, sha256=self._digests["sha256"].hexdigest())

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._descriptor)

    def _open(self) -> int:
        descriptor = os.open(self._path, _FLAGS, 0o644)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"{self._path} is not a regular file")
        return descriptor

    def _start_over(self) -> None:
        self._size = 0
        self._synced = 0
        self._digests = {"sha256": hashlib.sha256()}
        if self._file.git_sha1:
            header = f"blob {self._file.size}\0".encode()
            self._digests["git_sha1"] = hashlib.sha1(header, usedforsecurity=False)
        if self._file.md5:
            self._digests["md5"] = hashlib.md5(usedforsecurity=False)

    def _take(self, data: bytes | memoryview) -> None:
        for digest in self._digests.values():
            digest.update(data)
        self._size += len(data)
