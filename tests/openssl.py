"""The openssl program, for tests that need certificates."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(*arguments: str) -> None:
    """Runs a command; raises AssertionError with what it said when it failed."""
    command = ["openssl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def new_key(path: Path) -> tuple[str, ...]:
    """Returns the arguments by which `req` makes a key, too."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    return (*curve, "-keyout", str(path))
