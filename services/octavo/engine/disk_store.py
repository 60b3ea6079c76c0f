"""A folder of blocks, one file each, named by its hash and its parent. Blocks the caller.

A file appears under its name only when it is complete: it is written under a temporary name and
renamed. Nothing is flushed to the device: after a power failure a file may be torn, which its
checksum shows when it is read. Files that are not what they should be are removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from octavo.engine.disk_format import OVERHEAD_BYTES, DamagedBlockError, decode, encode
from octavo.v1.block_hash import BlockHash

_SUFFIX: Final = ".kv"
_TEMPORARY: Final = ".tmp"
_NAME: Final = re.compile(r"([0-9a-f]{32})-((?:[0-9a-f]{32})?)\.kv")


class DiskStore:
    """The blocks of one KV namespace; another one has a folder of its own beside it.

    Args:
        folder: where the folders of all namespaces lie; made if it does not exist.
        namespace: 16 bytes that tell model, type and layout.
        page_bytes: of a block.
    """

    def __init__(self, folder: Path, namespace: bytes, page_bytes: int) -> None:
        self.file_bytes = page_bytes + OVERHEAD_BYTES
        """Size of one block's file."""
        self._folder = folder / namespace.hex()
        self._namespace = namespace
        self._written = 0

    def open(self) -> list[tuple[BlockHash, BlockHash]]:
        """Removes what an earlier life left half-written; raises OSError.

        Returns:
            (hash, parent) of the blocks in the folder, least recently used first. Only names and
            sizes are looked at: content is checked when it is read.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[tuple[float, str, BlockHash, BlockHash]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                with contextlib.suppress(FileNotFoundError):  # another engine may be at work here
                    stat = entry.stat(follow_symlinks=False)
                    if match is not None and stat.st_size == self.file_bytes:
                        hash_, parent = (BlockHash(bytes.fromhex(part)) for part in match.groups())
                        found.append((stat.st_mtime, entry.name, hash_, parent))
                    elif entry.name.endswith((_SUFFIX, _TEMPORARY)):
                        Path(entry.path).unlink()
        return [(hash_, parent) for _, _, hash_, parent in sorted(found)]

    def write(self, hash_: BlockHash, parent: BlockHash, page: bytes) -> None:
        """Writes a block; raises OSError, and then nothing is left of it."""
        self._written += 1
        temporary = self._folder / f"{hash_.hex()}.{os.getpid()}.{self._written}{_TEMPORARY}"
        data = encode(self._namespace, hash_, parent, page)
        try:
            with temporary.open("xb") as file:
                file.write(data)
            temporary.replace(self._path(hash_, parent))
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def read(self, hash_: BlockHash, parent: BlockHash) -> bytes:
        """Returns the page of a block, which is now the most recently used.

        Raises:
            OSError: it is not there or cannot be read.
            DamagedBlockError: it was not what it should be, and is removed.
        """
        path = self._path(hash_, parent)
        try:
            page = decode(path.read_bytes(), self._namespace, hash_, parent)
        except DamagedBlockError:
            self.remove(hash_, parent)
            raise
        with contextlib.suppress(OSError):  # an order of use that is a little wrong harms nobody
            os.utime(path)
        return page

    def remove(self, hash_: BlockHash, parent: BlockHash) -> None:
        """Removes a block if it is there; raises OSError."""
        self._path(hash_, parent).unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes all blocks; raises OSError."""
        with os.scandir(self._folder) as entries:
            paths = [Path(e.path) for e in entries if e.name.endswith((_SUFFIX, _TEMPORARY))]
        for path in paths:
            path.unlink(missing_ok=True)

    def _path(self, hash_: BlockHash, parent: BlockHash) -> Path:
        return self._folder / f"{hash_.hex()}-{parent.hex()}{_SUFFIX}"
