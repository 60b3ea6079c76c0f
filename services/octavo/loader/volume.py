"""The folder of a model on its volume: one loader at a time, nothing visible before it is whole.

/models/NAME                what engines see, made by one rename
/models/.partial-DIGEST     the same while it is loaded; a later run goes on in it
/models/.lock-DIGEST        held by the loader at work, and freed by the kernel when it ends
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog

from octavo.loader.source import RemoteFile
from octavo.runtime import manifest
from octavo.runtime.manifest import Manifest
from octavo.v1.errors import BAD_SETTING, VOLUME_FAILED, VOLUME_FULL, OctavoError

log = structlog.get_logger(__name__)

_PARTIAL: Final = ".partial-"
_DIGITS: Final = 12
"""Of a digest in a name."""
_POLL_S: Final = 0.5
_SPARE_BYTES: Final = 8 << 20
"""Left free beside the files, for folders, manifest and the file system's own blocks."""
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Volume:
    """The places of one target.

    Raises:
        OctavoError: the target cannot be one.
    """

    def __init__(self, target: Path) -> None:
        self.target = target.absolute()
        self._parent = self.target.parent
        name = target.name
        if not name or name.startswith(".") or not self._parent.is_dir():
            reason = "needs a name without a dot in front, in a folder that exists"
            raise OctavoError(
                BAD_SETTING, key="target", value=str(target), origin="loader", reason=reason
            )
        self._id = _digest(name)

    def partial(self, model: str, revision: str) -> Path:
        """Returns where a model is while it is loaded."""
        return self._parent / f"{_PARTIAL}{self._id}{_digest(model, revision)}"

    @asynccontextmanager
    async def lock(self, waiting: Callable[[], None]) -> AsyncIterator[None]:
        """Holds the target; `waiting` is called again and again while another has it.

        Where the file system has no locks the work may be done twice; what is there in the end
        the manifest still tells.
        """
        descriptor = self._open_lock(self._id)
        try:
            while not _try_lock(descriptor):
                waiting()
                await asyncio.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)

    @property
    def is_taken(self) -> bool:
        """Whether something has the target's name; an empty folder has not."""
        return self.target.exists() and not (self.target.is_dir() and not _entries(self.target))

    def prepare(self, partial: Path) -> None:
        """Makes the partial folder, and removes those of other revisions of this target."""
        for path in self._parent.glob(f"{_PARTIAL}{self._id}*"):
            if path != partial:
                log.info("removing_partial", path=str(path))
                shutil.rmtree(path)
        partial.mkdir(mode=0o755, exist_ok=True)

    def prune(self, partial: Path, files: Collection[RemoteFile]) -> int:
        """Removes from the partial folder what is none of the files; returns their bytes there."""
        sizes = {file.name: file.size for file in files}
        present = 0
        for path in _entries(partial):
            if path.name in sizes and path.is_file() and not path.is_symlink():
                present += min(path.stat().st_size, sizes[path.name])
            elif path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        return present

    def withdraw(self, partial: Path) -> None:
        """Takes a damaged model out of sight, to be mended as a partial one."""
        if partial.exists():
            shutil.rmtree(partial)
        self.target.rename(partial)

    def make_room(self, num_bytes: int, keep: Collection[str]) -> None:
        """Removes other models until so many more bytes fit, or none is left that may go.

        First go those that never became whole, then the oldest. What no loader brought stays, and
        what a loader works at.

        Args:
            num_bytes: that will be written.
            keep: names of folders that stay; if there are none, all do.
        """
        if not keep:
            return
        kept = {_digest(name) for name in (*keep, self.target.name)}
        others = [(path, digest) for path, digest in self._models() if digest not in kept]
        for path, digest in sorted(others, key=_age):
            if self._fits(num_bytes):
                return
            self._remove(path, digest)

    def check_space(self, num_bytes: int) -> None:
        """Raises OctavoError VOLUME_FULL unless so many more bytes fit."""
        if not self._fits(num_bytes):
            raise self._full(f"{_size(num_bytes)} more", self._free)

    def failed(self, error: OSError) -> OctavoError:
        """Returns what the failure of a file operation is called."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return self._full("more", self._free)
        return OctavoError(VOLUME_FAILED, path=self._parent, reason=error.strerror or str(error))

    def publish(self, partial: Path, content: Manifest) -> None:
        """Writes the manifest and gives the folder its name: the model is there, whole."""
        path = partial / manifest.NAME
        with path.open("wb") as file:
            file.write(content.encode())
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(partial)
        partial.rename(self.target)
        _sync_folder(self._parent)

    def _models(self) -> Iterator[tuple[Path, str]]:
        """Yields the folders of models, whole and partial ones, with the digest of their name."""
        for path in _entries(self._parent):
            if path.is_symlink() or not path.is_dir():
                continue
            if path.name.startswith(_PARTIAL):
                yield path, path.name.removeprefix(_PARTIAL)[:_DIGITS]
            elif (path / manifest.NAME).is_file():
                yield path, _digest(path.name)

    def _remove(self, path: Path, digest: str) -> None:
        """Removes a model, unless its loader is at work; killed meanwhile, it leaves a partial."""
        descriptor = self._open_lock(digest)
        try:
            if not _try_lock(descriptor):
                return
            log.info("removing_model", path=str(path))
            gone = self._parent / f"{_PARTIAL}{digest}-removed"
            if not path.name.startswith(_PARTIAL):
                path = path.rename(gone)
            shutil.rmtree(path)
        finally:
            os.close(descriptor)

    def _open_lock(self, digest: str) -> int:
        path = self._parent / f".lock-{digest}"
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def _fits(self, num_bytes: int) -> bool:
        return num_bytes + _SPARE_BYTES <= self._free

    @property
    def _free(self) -> int:
        status = os.statvfs(self._parent)
        return status.f_bavail * status.f_frsize

    def _full(self, needs: str, free: int) -> OctavoError:
        return OctavoError(VOLUME_FULL, path=self._parent, needs=needs, free=_size(free))


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.warning("volume_has_no_locks", reason=error.strerror)
    return True


def _age(model: tuple[Path, str]) -> tuple[bool, float, str]:
    """Orders models: partial ones first, then by when they became whole."""
    path, _ = model
    return not path.name.startswith(_PARTIAL), path.stat().st_mtime, path.name


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_DIGITS]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"
