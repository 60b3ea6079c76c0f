from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from octavo.cli import child

CHILD = str(Path(child.__file__))


def test_child_becomes_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", CHILD, str(os.getpid()), "/bin/echo", "a b", "c"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout == "a b c\n"


def test_child_of_a_parent_that_is_gone_does_not_start() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", CHILD, "1", "/bin/echo", "no"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
