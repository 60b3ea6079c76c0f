"""Archives of images without the layers that are known."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest
from tests.cluster.api import Object
from tests.cluster.image_archive import full_name, sift

BASE, TOP = b"base" * 100, b"top" * 100


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def saved() -> io.BytesIO:
    """An archive as `docker save` writes it: by name, and an equal layer is a link."""
    config = json.dumps({"rootfs": {"type": "layers"}}).encode()
    layers = ["b/layer.tar", "a/layer.tar", "c/layer.tar"]
    manifest = [{"Config": "0.json", "RepoTags": ["octavo/x:1"], "Layers": layers}]
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in (
            ("0.json", config),
            ("a/layer.tar", TOP),
            ("b/layer.tar", BASE),
            ("c/json", b"{}"),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("c/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../b/layer.tar"
        archive.addfile(link)
    stream.seek(0)
    return stream


@pytest.mark.parametrize("known", [set(), {digest(BASE)}, {digest(BASE), digest(TOP)}])
def test_a_layout_names_all_layers_and_has_those_that_are_not_known(known: set[str]) -> None:
    target = io.BytesIO()
    sift(saved(), target, known)
    target.seek(0)
    with tarfile.open(fileobj=target) as layout:
        files: dict[str, bytes] = {}
        for member in layout:
            content = layout.extractfile(member)
            assert content is not None
            files[member.name] = content.read()

    def blob(wanted: str) -> Object:
        content = files[wanted.replace("sha256:", "blobs/sha256/")]
        assert digest(content) == wanted
        found: Object = json.loads(content)
        return found

    (described,) = json.loads(files["index.json"])["manifests"]
    assert described["annotations"] == {"io.containerd.image.name": "docker.io/octavo/x:1"}
    manifest = blob(described["digest"])
    assert blob(manifest["config"]["digest"]) == {"rootfs": {"type": "layers"}}
    wanted = [(digest(BASE), len(BASE)), (digest(TOP), len(TOP)), (digest(BASE), len(BASE))]
    assert [(layer["digest"], layer["size"]) for layer in manifest["layers"]] == wanted
    here = {each for each in (digest(BASE), digest(TOP)) if each[7:] in "".join(files)}
    assert here == {digest(BASE), digest(TOP)} - known


def test_containerd_calls_images_by_their_registry() -> None:
    assert full_name("octavo/gateway:1") == "docker.io/octavo/gateway:1"
    assert full_name("octavo.dev/base:1") == "octavo.dev/base:1"
