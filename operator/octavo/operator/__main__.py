"""`python -m octavo.operator`: settings, then the process. With `crd` it prints the definition."""

from __future__ import annotations

import os
import sys

from octavo.runtime import arguments
from octavo.v1.errors import OctavoError


def main() -> int:
    """Runs the operator until it is told to stop; returns the exit status."""
    if sys.argv[1:] == ["crd"]:
        from octavo.operator import crd

        sys.stdout.write(crd.as_yaml())
        return 0
    from octavo.operator.config import OperatorConfig

    loaded = arguments.parse(OperatorConfig, sys.argv[1:], os.environ, "python -m octavo.operator")
    from octavo.operator import process

    try:
        process.run(loaded.value)
    except OctavoError as error:
        return arguments.complain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
