"""`python -m octavo.engine`: settings, listening from second 0, loading, serving, draining."""

from __future__ import annotations

import os
import sys


def _bound_spinning(environ: dict[str, str] | os._Environ[str]) -> None:
    """Bounds OpenMP's spinning before torch is loaded, unless the user chose otherwise.

    A contended machine (a laptop, a pod with a CPU limit) otherwise runs several times slower: see
    docs/performance.md.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "5000")


def main(argv: list[str] | None = None) -> int:
    """Runs an engine until it is told to stop; returns the exit status."""
    _bound_spinning(os.environ)
    from octavo.engine.config import EngineConfig
    from octavo.runtime.arguments import parse
    from octavo.v1.errors import OctavoError

    try:
        loaded = parse(
            EngineConfig, sys.argv[1:] if argv is None else argv, os.environ, "octavo engine"
        )
        from octavo.engine.process import serve

        return serve(loaded.value, os.environ)
    except OctavoError as error:
        print(f"{error}\n  help: {error.help}", file=sys.stderr)  # noqa: T201
        return error.kind.exit_code


if __name__ == "__main__":
    sys.exit(main())
