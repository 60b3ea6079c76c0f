"""Prints the part of requirements.txt that some packages or extras need, hashes included.

    python tools/lock_part.py gateway                   the extra, the base, all that they need
    python tools/lock_part.py engine --without torch    the same, less a package and its own needs

The lock says who needs what in its comments, so nothing is resolved anew and no network is needed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Prints the part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("roots", nargs="+", help="extras of pyproject.toml, or packages")
    parser.add_argument("--without", default=[], nargs="+", help="patterns, and what they need")
    arguments = parser.parse_args()
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = closure(lock, roots_of(project, arguments.roots))
    wanted -= closure(lock, named(lock, arguments.without))
    sys.stdout.write(part(lock, wanted))
    return 0


def roots_of(project: dict[str, object], names: list[str]) -> set[str]:
    """Returns the packages that extras name, the base's among them; other names stay."""
    extras = project["optional-dependencies"]
    base = project["dependencies"]
    assert isinstance(extras, dict)
    assert isinstance(base, list)
    roots: set[str] = set()
    for name in names:
        if name in extras:
            roots |= {_name(requirement) for requirement in [*extras[name], *base]}
        else:
            roots.add(_name(name))
    return roots


def blocks(lock: str) -> dict[str, str]:
    """Returns the lines of each package: pins, hashes, and who needs it.

    A package may be pinned twice, for interpreters that need different versions.
    """
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", lock):
        if re.match(r"[A-Za-z0-9._-]+==", block):
            name = _name(block)
            found[name] = found.get(name, "") + block.rstrip("\n") + "\n"
    return found


def closure(lock: str, roots: set[str]) -> set[str]:
    """Returns packages and all that they need; raises KeyError for one that is not locked."""
    below: dict[str, set[str]] = {name: set() for name in blocks(lock)}
    for name, block in blocks(lock).items():
        for user in re.findall(r"^ +#(?: +via)? +([A-Za-z0-9._-]+)$", block, re.MULTILINE):
            if user != "via":
                below[_name(user)].add(name)
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += below[name]
    return found


def named(lock: str, patterns: list[str]) -> set[str]:
    """Returns the packages whose names match one of the patterns."""
    return {name for name in blocks(lock) if any(re.fullmatch(p, name) for p in patterns)}


def part(lock: str, wanted: set[str]) -> str:
    """Returns the lock's lines of some packages, in its order."""
    return "".join(block for name, block in blocks(lock).items() if name in wanted)


def _name(requirement: str) -> str:
    """Returns the normal form of the name that a requirement begins with."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


if __name__ == "__main__":
    sys.exit(main())
