"""The images, built and run as pods run them: not root, on a root that is read-only."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.charts.rendering import ROOT
from tests.cluster.builder import Builder
from tools.lock_part import closure, part, roots_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

SITE = "usr/local/lib/python3.11/dist-packages"
LIMIT_MB = {"gateway": 250, "operator": 200, "loader": 200, "valkey": 20, "engine": 5000}
PARTS = {name: {name, "runtime", "v1"} for name in ("gateway", "operator", "loader")} | {
    "engine": {"engine", "kernels", "runtime", "v1"}
}
SHELLS_AND_TOOLS = re.compile(
    r"(ba|da|z|k|c|tc)?sh|busybox|gcc.*|g\+\+.*|cc1.*|ld|as|make|apt.*|dpkg|pip.*|perl.*|curl|wget"
)


@dataclass(frozen=True, slots=True)
class Image:
    """An image, laid out in a folder."""

    name: str
    root: Path
    config: dict[str, Any]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in it, without a network, with a writable /tmp only."""
        script = (
            'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
            ' && mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"'
            ' && exec chroot --userspec=65532:65532 "$0" "$@"'
        )
        variables = dict(each.split("=", 1) for each in self.config["Env"])
        inside = ["unshare", "--mount", "--net", "/bin/sh", "-c", script, str(self.root), *command]
        return subprocess.run(
            ["env", "-i", *(f"{key}={value}" for key, value in variables.items()),
             "PATH=/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONWARNINGS=error", *inside],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Image]]:
    if os.geteuid() != 0:
        pytest.skip("dockerd needs root")
    folder, found = tmp_path_factory.mktemp("images"), {}
    with ExitStack() as mounts:
        with Builder() as builder:
            for name in LIMIT_MB:
                tag = f"octavo/{name}:under-test"
                builder.build_image(tag, ROOT / "Dockerfile", target=name)
                root = mounts.enter_context(laid_out(builder.folders(tag), folder / name))
                found[name] = Image(name, root, builder.config(tag))
        yield found


def checkout(folder: Path) -> Path:
    """Makes another checkout, in which only its owner may read; returns its Dockerfile.

    No layer of it is in the cache: what finishes them all has one more line.
    """
    folder.mkdir()
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy(ROOT / name, folder)
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        name = line.removeprefix("!")
        if line.startswith("!") and (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, copy_function=shutil.copyfile)
        elif line.startswith("!"):
            shutil.copyfile(ROOT / name, folder / name)
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    with (folder / "tools" / "image_layer.py").open("a", encoding="utf-8") as file:
        file.write("# Finished once more.\n")
    return folder / "Dockerfile"


@contextmanager
def laid_out(layers: Sequence[Path], folder: Path) -> Iterator[Path]:
    """Gives a folder that shows layers, the uppermost first, as one tree."""
    root, empty = folder / "root", folder / "empty"  # there have to be two layers
    root.mkdir(parents=True)
    empty.mkdir()
    lower = ":".join(map(str, [*layers, empty]))
    mount = ["mount", "-t", "overlay", "-o", f"ro,lowerdir={lower}", "overlay", str(root)]
    subprocess.run(mount, check=True, timeout=60)
    try:
        yield root
    finally:
        subprocess.run(["umount", str(root)], check=True, timeout=60)


@pytest.mark.usefixtures("images")
def test_an_image_is_the_same_whenever_and_wherever_it_is_built(tmp_path: Path) -> None:
    first, again = "octavo/loader:under-test", "octavo/loader:again"
    with Builder() as builder:
        builder.build_image(again, checkout(tmp_path / "checkout"), target="loader")
        layers = [[held(layer) for layer in builder.folders(name)] for name in (first, again)]
        assert builder.config(first) == builder.config(again)
    for before, after in zip(*layers, strict=True):
        differing = {path for path, _ in before.items() ^ after.items()}
        assert sorted(differing)[:20] == []


def held(layer: Path) -> dict[str, tuple[object, ...]]:
    """Returns all that an archive of a layer keeps, by path.

    Not its digest: dockerd orders files in two ways, by what else it has.
    """
    found: dict[str, tuple[object, ...]] = {}
    for path in layer.rglob("*"):
        told = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if stat.S_ISREG(told.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        state = (told.st_mode, told.st_uid, told.st_gid, told.st_mtime_ns, content)
        found[str(path.relative_to(layer))] = state
    return found


@pytest.mark.parametrize("name", LIMIT_MB)
def test_image_is_small(name: str, images: dict[str, Image]) -> None:
    size = sum(p.lstat().st_size for p in images[name].root.rglob("*") if not p.is_dir())
    assert size < LIMIT_MB[name] * 1e6, f"{size / 1e6:.0f} MB"


@pytest.mark.parametrize("name", LIMIT_MB)
def test_there_is_no_shell_no_compiler_and_no_way_to_become_root(
    name: str, images: dict[str, Image]
) -> None:
    for path in images[name].root.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            assert not mode & (stat.S_ISUID | stat.S_ISGID), path
            if mode & stat.S_IXUSR and path.parent.name in ("bin", "sbin"):
                assert not SHELLS_AND_TOOLS.fullmatch(path.name), path


@pytest.mark.parametrize("name", PARTS)
def test_process_starts_without_a_warning(name: str, images: dict[str, Image]) -> None:
    done = images[name].run("python", "-m", f"octavo.{name}", "--help")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Usage:" in done.stdout


def test_valkey_starts(images: dict[str, Image]) -> None:
    done = images["valkey"].run("valkey-server", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Valkey server v=")


@pytest.mark.parametrize("name", LIMIT_MB)
def test_image_runs_as_nobody_in_particular(name: str, images: dict[str, Image]) -> None:
    config = images[name].config
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.title"] == f"octavo {name}"
    for path in images[name].root.rglob("*"):
        if path.name != "tmp" and not path.is_symlink():
            assert not path.lstat().st_mode & stat.S_IWOTH, f"{path} is writable for all"


LIST_PACKAGES = """\
import importlib.metadata
for found in importlib.metadata.distributions():
    print(f"{found.name}=={found.version}")
"""


def normal(pin: str) -> str:
    return re.sub(r"[-_.]+", "-", pin).lower()


@pytest.mark.parametrize("name", PARTS)
def test_packages_are_those_of_the_lock(name: str, images: dict[str, Image]) -> None:
    done = images[name].run("python", "-c", LIST_PACKAGES)
    assert done.returncode == 0, done.stderr
    there = {normal(line) for line in done.stdout.split()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lock = (ROOT / "requirements.txt").read_text("utf-8")
    wanted = part(lock, closure(lock, roots_of(project, [name])))
    assert there <= {normal(pin) for pin in re.findall(r"^\S+==\S+", wanted, re.MULTILINE)}
    assert len(there) > 20


@pytest.mark.parametrize("name", PARTS)
def test_image_has_its_own_part_only_and_runs_no_code_at_the_interpreter_s_start(
    name: str, images: dict[str, Image]
) -> None:
    site = images[name].root / SITE
    assert {path.name for path in (site / "octavo").iterdir()} == PARTS[name]
    assert list(images[name].root.rglob("*.pth")) == []
    assert list(images[name].root.rglob("sitecustomize.py")) == []


def test_scanners_learn_what_the_libraries_are(images: dict[str, Image]) -> None:
    for name in PARTS:
        listed = {path.name for path in (images[name].root / "var/lib/dpkg/status.d").iterdir()}
        assert {"libc6", "libssl3", "python3.11-minimal", "libpython3.11-stdlib"} <= listed
