"""Finishes a layer of an image: Python compiled, leftovers gone, everything of one time.

    python tools/image_layer.py LAYER

The folder has the layout of the image's root. Compiled files are not compared with their sources at
run time; equal content is an equal layer, whenever it was made. Times: SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SITE = Path("usr/local/lib") / f"python3.{sys.version_info.minor}" / "dist-packages"
"""Where packages lie in a layer."""


def main() -> int:
    """Finishes the folder."""
    layer = Path(sys.argv[1])
    (layer / SITE / ".lock").unlink(missing_ok=True)
    # Commands of packages: images run modules.
    shutil.rmtree(layer / SITE / "bin", ignore_errors=True)
    for at_start in (layer / SITE).glob("*.pth"):  # code that every start would run
        at_start.unlink()
    compiled = [sys.executable, "-m", "compileall", "-qq", "-j", "0"]
    compiled += ["--invalidation-mode", "unchecked-hash", "-s", str(layer), "-p", "/", str(layer)]
    # Not checked: packages carry files for newer interpreters, which this one cannot compile.
    subprocess.run(compiled, check=False)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or 0)
    for path in [*layer.rglob("*"), layer]:
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
