"""Entry point of the `octavo` command."""

from __future__ import annotations

import os
import sys

from octavo.cli.commands import run


def main() -> None:
    """Runs the command line and exits with its status."""
    sys.exit(run(sys.argv[1:], os.environ))


if __name__ == "__main__":
    main()
