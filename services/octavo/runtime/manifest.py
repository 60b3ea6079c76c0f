"""What a model folder holds, by size and SHA-256: written by the loader, checked by the engine.

A folder with a manifest is whole: the loader writes it last and gives the folder its name after
that. Knows nothing of what the files mean.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

NAME: Final = "octavo-manifest.json"
_MAX_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 20


class ManifestError(Exception):
    """Why a folder is not what its manifest says, in one line."""


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the model."""

    size: int
    """Bytes."""
    sha256: str
    """Of the whole content, 64 hexadecimal digits."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model at one revision."""

    format: Literal[1] = 1
    model: str
    """Where it came from: hf://org/name or s3://bucket/prefix."""
    asked: str
    """The revision that was asked for; a branch may have moved since."""
    revision: str
    """The revision that was loaded, which cannot change."""
    files: dict[str, FileEntry]
    """All files of the folder but the manifest, by name."""

    @property
    def model_id(self) -> str:
        """The model's name without scheme and, for the hub, without a file: org/name."""
        scheme, _, path = self.model.partition("://")
        return "/".join(path.split("/")[:2]) if scheme == "hf" else path

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(entry.size for entry in self.files.values())

    def encode(self) -> bytes:
        """Returns the manifest's text; equal manifests give equal bytes."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted")) + b"\n"


def read(folder: Path) -> Manifest | None:
    """Returns the manifest of a folder, None when it has none.

    Raises:
        ManifestError: it is no manifest.
        OSError: it cannot be read.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    if path.stat().st_size > _MAX_BYTES:
        raise ManifestError(f"{NAME} is larger than {_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestError(f"{NAME} cannot be read: {error}") from error


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raises ManifestError unless the folder has exactly the manifest's files, in their sizes.

    Names that begin with a dot do not count: some file systems make such files themselves.
    """
    present = {path.name: path.lstat() for path in folder.iterdir()}
    for name, entry in manifest.files.items():
        status = present.pop(name, None)
        if status is None:
            raise ManifestError(f"{name} is missing")
        if not stat.S_ISREG(status.st_mode):
            raise ManifestError(f"{name} is not a regular file")
        if status.st_size != entry.size:
            raise ManifestError(
                f"{name} has {status.st_size} bytes, {NAME} says {entry.size}: it is damaged"
            )
    extra = sorted(name for name in present.keys() - {NAME} if not name.startswith("."))
    if extra:
        raise ManifestError(f"{extra[0]} is not in {NAME}")


def check_digests(
    folder: Path, manifest: Manifest, told: Callable[[int, int], None] | None = None
) -> None:
    """Raises ManifestError for a file whose content is another; reads everything.

    Args:
        folder: has the manifest's files, see `check_sizes`.
        manifest: what they should be.
        told: called with bytes done and bytes in all after each piece.
    """
    done = 0
    for name, entry in manifest.files.items():
        digest = hashlib.sha256()
        with (folder / name).open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                digest.update(data)
                done += len(data)
                if told is not None:
                    told(done, manifest.num_bytes)
        if digest.hexdigest() != entry.sha256:
            raise ManifestError(f"{name} is damaged: its SHA-256 is not that of {NAME}")
