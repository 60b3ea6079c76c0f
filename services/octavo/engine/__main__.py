"""`python -m octavo.engine`: settings, then the process."""

from __future__ import annotations

import os
import sys


def _bound_spinning() -> None:
    """Bounds OpenMP's spinning before torch is loaded, unless the user chose otherwise.

    A contended machine (a laptop, a pod with a CPU limit) otherwise runs several times slower: see
    docs/performance.md.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def main() -> int:
    """Runs an engine until it is told to stop; returns the exit status."""
    _bound_spinning()
    # gRPC's own lines are no events of ours; it reads the variable when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from octavo.engine.config import EngineConfig
    from octavo.runtime import arguments, failpoint
    from octavo.v1.errors import OctavoError

    loaded = arguments.parse(EngineConfig, sys.argv[1:], os.environ, "python -m octavo.engine")
    try:
        failpoint.arm(os.environ.get(failpoint.VARIABLE, ""))
        from octavo.engine import process

        return process.serve(loaded.value, os.environ)
    except OctavoError as error:
        return arguments.complain(error)


if __name__ == "__main__":
    sys.exit(main())
