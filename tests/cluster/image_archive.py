"""Makes an OCI image layout of what `docker save` prints, without the layers that are known.

The largest layer of an engine has 4.5 GB, and what a change touches is mostly in the smallest.
See the image-layout of the OCI image specification 1.0, which `ctr images import` takes.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import tarfile
import tempfile
from collections.abc import Set
from typing import IO

from tests.cluster.api import Object

_OCI = "application/vnd.oci.image"
_CHUNK = 1 << 20


def full_name(name: str) -> str:
    """Returns what containerd calls an image that docker calls `name`."""
    return name if "." in name.partition("/")[0] else f"docker.io/{name}"


def sift(saved: IO[bytes], target: IO[bytes], known: Set[str]) -> None:
    """Reads an archive once and writes it anew.

    Args:
        saved: what `docker save` prints.
        target: gets a tar file.
        known: digests of the layers to leave out.
    """
    layers: dict[str, Object] = {}
    links: dict[str, str] = {}
    files: dict[str, bytes] = {}
    with (
        tarfile.open(fileobj=saved, mode="r|") as source,
        tarfile.open(fileobj=target, mode="w|") as layout,
    ):
        for member in source:
            if member.issym():  # the same layer in another place
                folder = posixpath.dirname(member.name)
                links[member.name] = posixpath.normpath(posixpath.join(folder, member.linkname))
            elif content := source.extractfile(member):
                if member.name.endswith("layer.tar"):
                    layers[member.name] = _pass_layer(content, layout, known)
                else:
                    files[member.name] = content.read()
        manifests = []
        for image in json.loads(files["manifest.json"]):
            config = _add(layout, "config.v1+json", files[image["Config"]])
            parts = [layers[links.get(name, name)] for name in image["Layers"]]
            described = {"schemaVersion": 2, "config": config, "layers": parts}
            manifest = _add(layout, "manifest.v1+json", json.dumps(described).encode())
            for name in image["RepoTags"]:
                named = {"io.containerd.image.name": full_name(name)}
                manifests.append(manifest | {"annotations": named})
        index = {"schemaVersion": 2, "manifests": manifests}
        _write(layout, "index.json", json.dumps(index).encode())
        _write(layout, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def _pass_layer(content: IO[bytes], layout: tarfile.TarFile, known: Set[str]) -> Object:
    """Returns the descriptor of a layer, whose name is only known when it has been read."""
    with tempfile.TemporaryFile() as kept:
        digest = hashlib.sha256()
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            kept.write(chunk)
        found = _descriptor("layer.v1.tar", digest.hexdigest(), kept.tell())
        if found["digest"] not in known:
            entry = tarfile.TarInfo(f"blobs/sha256/{digest.hexdigest()}")
            entry.size = kept.tell()
            kept.seek(0)
            layout.addfile(entry, kept)
    return found


def _add(layout: tarfile.TarFile, kind: str, content: bytes) -> Object:
    """Writes a blob and returns its descriptor."""
    digest = hashlib.sha256(content).hexdigest()
    _write(layout, f"blobs/sha256/{digest}", content)
    return _descriptor(kind, digest, len(content))


def _descriptor(kind: str, digest: str, size: int) -> Object:
    return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{digest}", "size": size}


def _write(layout: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    layout.addfile(entry, io.BytesIO(content))
