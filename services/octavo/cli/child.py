"""Becomes another program that dies with its parent.

`python child.py PARENT COMMAND ...` asks the kernel for SIGKILL when the parent ends, then replaces
itself with COMMAND. The request survives exec, so it also holds for programs that know nothing of
it, and for a parent that is killed without a chance to clean up. Imports nothing but the standard
library: it is run by path, before the real program starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Runs argv[1:] in this process, bound to the life of the process argv[0]."""
    parent, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the request was made
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
