"""What a place that models come from offers: a fixed list of files, and their bytes from anywhere.

A port: `hub` and `bucket` are its adapters.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol


class TransientError(Exception):
    """A failure that may be over soon.

    Args:
        reason: what happened, in one line.
        retry_after_s: how long the source asks to be left alone.
    """

    def __init__(self, reason: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a listing, with what its source says of the content; empty where it is silent."""

    name: str
    size: int
    sha256: str = ""
    git_sha1: str = ""
    """Name of the content as a git blob."""
    etag: str = ""
    """As HTTP carries it, quotes included."""
    md5: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a model at one revision that cannot change."""

    revision: str
    files: tuple[RemoteFile, ...]


class Source(Protocol):
    """Where one model comes from."""

    @property
    def place(self) -> str:
        """Its name in messages."""
        ...

    async def list(self) -> Listing:
        """Returns the files beside one another; of folders within the model it knows nothing.

        Raises:
            TransientError: another try may succeed.
            OctavoError: none will.
        """
        ...

    def read(
        self, listing: Listing, file: RemoteFile, start: int, /
    ) -> AsyncGenerator[bytes, None]:
        """Yields bytes of a file from `start` on; may end early, and then another call goes on.

        Raises as `list` does.
        """
        ...
