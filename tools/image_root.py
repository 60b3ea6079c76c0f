"""Lays out the root of an image: an interpreter, the libraries that it loads, and nothing else.

Runs in a build stage of the Dockerfile, on Debian.

    python tools/image_root.py ROOT --python --for SITE     Python, for packages that lie in SITE
    python tools/image_root.py ROOT --for PROGRAM           the libraries of a program only

There is no shell, no compiler and no package manager in ROOT. For scanners, the Debian packages
that its files come from are listed in var/lib/dpkg/status.d.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PYTHON = f"python3.{sys.version_info.minor}"
STDLIB = Path("/usr/lib") / PYTHON
LEFT_OUT = {
    "__pycache__", "config-*", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sitecustomize.py",
    "test", "tkinter", "turtledemo", "venv",
    "_curses*", "_dbm*", "nis*", "ossaudiodev*", "readline*",
}  # fmt: skip
"""Of the standard library: what needs a display, a terminal, a compiler, or libraries for these."""

FILES = {
    "etc/passwd": "root:x:0:0:root:/:/nonexistent\noctavo:x:65532:65532:octavo:/tmp:/nonexistent\n",
    "etc/group": "root:x:0:\noctavo:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LOCALE = Path("/usr/lib/locale/C.utf8")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
ALWAYS = ("libgcc_s.so.1",)
"""Loaded by name while a program runs, so no program says that it needs it."""


def main() -> int:
    """Fills ROOT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--python", action="store_true")
    parser.add_argument("--for", dest="users", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    root: Path = arguments.root
    skeleton(root)
    users: list[Path] = arguments.users
    copied: list[Path] = []
    if arguments.python:
        copied += python(root)
        users += [inside(root, STDLIB), Path("/usr/bin") / PYTHON]
    copied += libraries(root, users)
    list_packages(root, copied)
    return 0


def skeleton(root: Path) -> None:
    """Makes the folders, links and small files that every image has."""
    for target in LINKS.values():
        (root / target).mkdir(parents=True, exist_ok=True)
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    copy(CERTIFICATES, root)
    shutil.copytree(LOCALE, inside(root, LOCALE))


def python(root: Path) -> list[Path]:
    """Copies the interpreter and its library; returns where they came from."""
    program = Path("/usr/bin") / PYTHON
    copy(program, root)
    for name in ("python", "python3"):
        (root / "usr/bin" / name).symlink_to(PYTHON)
    shutil.copytree(
        STDLIB, inside(root, STDLIB), symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT)
    )
    return [program, STDLIB / "os.py", STDLIB / "asyncio/__init__.py"]


def libraries(root: Path, users: Iterable[Path]) -> list[Path]:
    """Copies the system's libraries that programs and extensions need; returns them."""
    found = set()
    for program in (p for user in users for p in programs(user)):
        done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        # Of "libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x…)" and "/lib64/ld-linux… (0x…)".
        found |= set(re.findall(r"(?<!\S)(/(?:usr/)?lib\S*) \(0x", done.stdout))
    libc = next(path for path in found if Path(path).name.startswith("libc.so"))
    found |= {str(Path(libc).with_name(name)) for name in ALWAYS}
    for path in sorted(found):
        copy(Path(path), root)
    return [Path(path) for path in sorted(found)]


def programs(place: Path) -> Iterator[Path]:
    """Yields the programs and libraries at or below a place."""
    for path in [place, *sorted(place.rglob("*"))]:
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def inside(root: Path, path: Path) -> Path:
    """Returns where a path of this system is in the root."""
    return root / path.relative_to("/")


def copy(path: Path, root: Path) -> None:
    """Copies one file to the same place; what is a link becomes a file."""
    target = inside(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    target.chmod(0o755 if os.access(path, os.X_OK) else 0o644)


def list_packages(root: Path, files: Iterable[Path]) -> None:
    """Writes what dpkg knows about the packages of some files."""
    names = set()
    for path in files:
        # dpkg knows a file by where it was unpacked: perhaps in /lib, which is a link by now.
        whole = path.resolve()
        for known in {path, whole, Path(str(whole).removeprefix("/usr"))}:
            search = ["dpkg", "-S", str(known)]
            done = subprocess.run(search, capture_output=True, text=True, check=False)
            names |= set(re.findall(r"^(\S+): ", done.stdout, re.MULTILINE))
    folder = root / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True)
    for name in sorted(names):
        done = subprocess.run(["dpkg", "-s", name], capture_output=True, text=True, check=True)
        (folder / name.partition(":")[0]).write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
