"""Images that hold one static program and nothing else, written without any builder."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path


def scratch_image(program: Path, name: str, target: Path) -> Path:
    """Writes an archive, as `docker save` does, of an image that runs a program.

    Args:
        program: a static one; it becomes the image's entry point.
        name: of the image, with its tag.
        target: the archive's file.
    """
    layer = _tar({program.name: (program.read_bytes(), 0o755)})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    archive = _tar(
        {
            "config.json": (json.dumps(config).encode(), 0o644),
            "layer.tar": (layer, 0o644),
            "manifest.json": (json.dumps(manifest).encode(), 0o644),
        }
    )
    target.write_bytes(archive)
    return target


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
