"""`python -m octavo.loader`: settings, then the process."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Brings one model to one folder; ends the process."""
    from octavo.loader.config import LoaderConfig
    from octavo.runtime import arguments

    loaded = arguments.parse(LoaderConfig, sys.argv[1:], os.environ, "python -m octavo.loader")
    from octavo.loader import process

    status = process.run(loaded.value, os.environ)
    # A slow end would abort when a thread of the S3 client still wants the interpreter: seen after
    # a third of reads that ended just before.
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
