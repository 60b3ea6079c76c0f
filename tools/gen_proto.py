"""Generates the protobuf stubs beside the .proto files; does nothing when they are newer."""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO_ROOT = ROOT / "proto"


def is_current(sources: list[Path]) -> bool:
    """Tells whether every stub exists and is newer than its source and this tool."""
    newest = max(p.stat().st_mtime for p in [*sources, Path(__file__)])
    stubs = [p.with_name(f"{p.stem}_pb2.py") for p in sources]
    stubs += [p.with_name(f"{p.stem}_pb2_grpc.py") for p in sources]
    return all(p.exists() and p.stat().st_mtime >= newest for p in stubs)


def generate(*, force: bool = False) -> bool:
    """Runs protoc over proto/octavo/v1; returns whether anything had to be done."""
    sources = sorted(PROTO_ROOT.glob("octavo/v1/*.proto"))
    if not force and is_current(sources):
        return False
    from grpc_tools import protoc

    include = str(importlib.resources.files("grpc_tools") / "_proto")
    out = [f"--{kind}_out={PROTO_ROOT}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    names = [str(p.relative_to(PROTO_ROOT)) for p in sources]
    code = protoc.main(["protoc", f"-I{PROTO_ROOT}", f"-I{include}", *out, *names])
    if code != 0:
        raise RuntimeError(f"protoc exited with {code}")
    return True


if __name__ == "__main__":
    # protoc finds its mypy plug-ins on PATH, beside this interpreter.
    import os

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    generate(force="--force" in sys.argv)
