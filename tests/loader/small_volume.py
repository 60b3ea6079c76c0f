"""A volume of a few megabytes: a tmpfs in a mount namespace of its own, seen by one thread."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def on_small_volume(folder: Path, megabytes: int, scenario: Callable[[], None]) -> None:
    """Runs a scenario in a thread that finds a small volume at a folder; it ends with the thread.

    What the thread starts finds it too. Skips where this is not allowed.
    """
    failures: list[BaseException] = []

    def run() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            _check(libc.unshare(_CLONE_NEWNS))
            _check(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))
            size = f"size={megabytes}m".encode()
            _check(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, size))
        except OSError as error:
            failures.append(pytest.skip.Exception(f"no mount namespaces here: {error}"))
            return
        try:
            scenario()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
