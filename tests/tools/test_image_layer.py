from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from tools import image_layer


def finished(layer: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[float, bytes]]:
    """Makes a layer and finishes it; returns time and content of what is there."""
    package = layer / image_layer.SITE / "package"
    package.mkdir(parents=True)
    (package / "code.py").write_text("IS_IT = 'a' in {'a', 'b', 'c'}\n", encoding="utf-8")
    (package / "broken.py").write_text("match = = 1\n", encoding="utf-8")
    (package.parent / "at_start.pth").touch()
    (package.parent / ".lock").touch()
    (package.parent / "bin").mkdir()
    (layer / "bin").symlink_to("usr/bin")
    monkeypatch.setattr(sys, "argv", ["image_layer.py", str(layer)])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "7")
    assert image_layer.main() == 0
    found: dict[str, tuple[float, bytes]] = {}
    for path in sorted(layer.rglob("*")):
        told = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(told.st_mode) else b""
        found[str(path.relative_to(layer))] = (told.st_mtime, content)
    return found


def test_a_layer_is_the_same_whenever_and_wherever_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (finished(tmp_path / name, monkeypatch) for name in ("one", "two"))
    assert one == two
    assert {time for time, _ in one.values()} == {7}


def test_what_images_have_no_use_for_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finished(tmp_path, monkeypatch)
    names = {Path(path).name for path in found if "dist-packages/" in path}
    compiled = f"code.cpython-3{sys.version_info.minor}.pyc"
    assert names == {"package", "code.py", "broken.py", "__pycache__", compiled}
