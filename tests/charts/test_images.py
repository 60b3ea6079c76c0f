"""The images, built and run as pods run them: not root, on a root that is read-only."""

from __future__ import annotations

import os
import re
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
