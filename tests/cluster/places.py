"""Where clusters live: what is built, what is cached, what runs."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def cache_folder() -> Path:
    """Returns where binaries and images stay between runs: outside of every checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "octavo" / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def running_folder() -> Path:
    """Returns where each running cluster has a folder of its own, gone when the cluster is."""
    folder = Path(tempfile.gettempdir()) / f"octavo-cluster-{os.getuid()}"
    folder.mkdir(mode=0o755, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lets one process at a time work in a folder."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that works in {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def claim(path: Path) -> int | None:
    """Opens a lock file if nobody has it; it is free again when no process holds it open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def say(text: str) -> None:
    """Prints one line of progress."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)  # noqa: T201  (a command prints)
