"""`python -m octavo.gateway`: settings, then the process."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Runs a gateway until it is told to stop; returns the exit status."""
    # gRPC's own lines are no events of ours; it reads the variable when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from octavo.gateway.config import GatewayConfig
    from octavo.runtime import arguments, failpoint
    from octavo.v1.errors import OctavoError

    loaded = arguments.parse(GatewayConfig, sys.argv[1:], os.environ, "python -m octavo.gateway")
    try:
        failpoint.arm(os.environ.get(failpoint.VARIABLE, ""))
        from octavo.gateway import process

        process.run(loaded.value, os.environ)
    except OctavoError as error:
        return arguments.complain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
