"""Finishes a folder of packages for an image: compiled as they will lie there, all of one time.

    python tools/image_site.py SITE

Compiled files are not compared with their sources at run time, and equal packages are an equal
layer. Commands of packages go: images run modules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PLACE = f"/usr/local/lib/python3.{sys.version_info.minor}/dist-packages"
"""Where the folder's content lies in an image."""


def main() -> int:
    """Finishes the folder."""
    site = Path(sys.argv[1])
    for name in (".lock", "bin"):
        leftover = site / name
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)
    compiled = [sys.executable, "-m", "compileall", "-qq", "-j", "0"]
    compiled += ["--invalidation-mode", "unchecked-hash", "-s", str(site), "-p", PLACE, str(site)]
    # Not checked: packages carry files for newer interpreters, which this one cannot compile.
    subprocess.run(compiled, check=False)
    set_times(site)
    return 0


def set_times(folder: Path) -> None:
    """Gives everything in a folder, and the folder, the time SOURCE_DATE_EPOCH."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (epoch, epoch), follow_symlinks=False)


if __name__ == "__main__":
    sys.exit(main())
