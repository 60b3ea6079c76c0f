"""One name, one loader at a time, and nothing visible before it is whole."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.loader import volume as volume_module
from octavo.loader.source import RemoteFile
from octavo.loader.volume import Volume
from octavo.runtime import manifest
from octavo.runtime.manifest import Manifest
from octavo.v1.errors import BAD_SETTING, VOLUME_FAILED, VOLUME_FULL, OctavoError

MANIFEST = Manifest(model="hf://a/b", asked="", revision="0" * 40, files={})


@pytest.mark.parametrize("target", ["", ".", "/", "/tmp/..", "/tmp/.hidden", "/no/such/folder"])
def test_what_cannot_be_a_target_is_refused(target: str) -> None:
    with pytest.raises(OctavoError) as caught:
        Volume(Path(target))
    assert caught.value.kind is BAD_SETTING


def test_targets_and_revisions_do_not_share_partials(tmp_path: Path) -> None:
    one, other = Volume(tmp_path / "one"), Volume(tmp_path / "other")
    partials = {one.partial("hf://a/b", "r1"), one.partial("hf://a/b", "r2")}
    partials |= {one.partial("hf://a/c", "r1"), other.partial("hf://a/b", "r1")}
    assert len(partials) == 4
    assert all(path.name.startswith(".partial-") for path in partials)


def test_partials_of_other_revisions_of_this_target_go(tmp_path: Path) -> None:
    volume, other = Volume(tmp_path / "one"), Volume(tmp_path / "other")
    for path in (volume.partial("m", "old"), other.partial("m", "old")):
        path.mkdir()
        (path / "f").touch()
    new = volume.partial("m", "new")
    volume.prepare(new)
    assert new.is_dir()
    assert not volume.partial("m", "old").exists()
    assert other.partial("m", "old").exists()
    (new / "f").write_bytes(b"kept")
    volume.prepare(new)
    assert (new / "f").read_bytes() == b"kept"


def test_only_files_of_the_model_stay_in_a_partial(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "m")
    partial = volume.partial("m", "r")
    volume.prepare(partial)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(b"mine")
    (partial / "a").write_bytes(b"12345")
    (partial / "long").write_bytes(b"12345")
    (partial / "foreign").touch()
    (partial / "link").symlink_to(tmp_path / "outside")
    (partial / "folder" / "deep").mkdir(parents=True)
    names = ("a", "long", "link", "folder")
    files = [RemoteFile(name=name, size=3 if name == "long" else 9) for name in names]
    assert volume.prune(partial, files) == 5 + 3
    assert sorted(path.name for path in partial.iterdir()) == ["a", "long"]
    assert (tmp_path / "outside" / "f").read_bytes() == b"mine"


@pytest.mark.parametrize("exists", [False, True])
def test_a_model_appears_whole(tmp_path: Path, exists: bool) -> None:
    volume = Volume(tmp_path / "m")
    if exists:
        volume.target.mkdir()  # as a mount of a sub-path makes it
    assert not volume.is_taken
    partial = volume.partial("m", "r")
    volume.prepare(partial)
    volume.publish(partial, MANIFEST)
    assert volume.is_taken
    assert manifest.read(volume.target) == MANIFEST
    assert list(tmp_path.iterdir()) == [volume.target]


def test_a_model_is_not_published_over_another(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "m")
    volume.target.mkdir()
    (volume.target / "f").touch()
    assert volume.is_taken
    partial = volume.partial("m", "r")
    volume.prepare(partial)
    with pytest.raises(OSError, match="not empty"):
        volume.publish(partial, MANIFEST)
    assert list(volume.target.iterdir()) == [volume.target / "f"]


def test_a_withdrawn_model_is_a_partial_one(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "m")
    volume.target.mkdir()
    (volume.target / "f").write_bytes(b"kept")
    partial = volume.partial("m", "r")
    partial.mkdir()
    (partial / "older").touch()
    volume.withdraw(partial)
    assert not volume.target.exists()
    assert [path.name for path in partial.iterdir()] == ["f"]


def test_another_loader_waits_for_the_lock(tmp_path: Path) -> None:
    volume, other = Volume(tmp_path / "m"), Volume(tmp_path / "m")
    order: list[str] = []
    asked = asyncio.Event()

    async def first() -> None:
        async with volume.lock(lambda: None):
            order.append("first in")
            await asked.wait()
            order.append("first out")

    async def second() -> None:
        async with other.lock(asked.set):
            order.append("second in")

    async def main() -> None:
        await asyncio.gather(first(), second())

    asyncio.run(main())
    assert order == ["first in", "first out", "second in"]


def test_a_file_system_without_locks_does_not_stop_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)

    async def main() -> bool:
        async with Volume(tmp_path / "m").lock(lambda: pytest.fail("it waits")):
            return True

    assert asyncio.run(main())


PLENTY = 10**18
"""More than any volume of a test has."""


def brought(folder: Path, name: str, age: int = 0) -> str:
    """Makes a whole model, or a partial one of that name; returns the name of its folder."""
    path = folder / name
    if name.startswith("partial of "):
        path = Volume(folder / name.removeprefix("partial of ")).partial("m", "r")
    path.mkdir()
    if path.name == name:
        (path / manifest.NAME).write_bytes(MANIFEST.encode())
    os.utime(path, (1e9 - age, 1e9 - age))
    return path.name


def there(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".lock-")}


def test_while_there_is_room_nothing_goes(tmp_path: Path) -> None:
    before = {brought(tmp_path, name) for name in ("old", "partial of old", "used")}
    Volume(tmp_path / "new").make_room(1000, ["used"])
    assert there(tmp_path) == before


def test_who_is_told_to_keep_nothing_removes_nothing(tmp_path: Path) -> None:
    before = {brought(tmp_path, name) for name in ("old", "partial of old")}
    Volume(tmp_path / "new").make_room(PLENTY, [])
    assert there(tmp_path) == before


MODELS = ("new", "a", "b", "c", "partial of new", "partial of a", "partial of b")


@given(
    present=st.sets(st.sampled_from(MODELS)),
    keep=st.sets(st.sampled_from(["a", "b", "x"]), min_size=1),
)
def test_what_is_kept_stays_and_all_else_goes_when_all_has_to(
    present: set[str], keep: set[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {model: brought(folder, model) for model in present}
        (folder / "by hand").mkdir()
        (folder / "file").touch()
        (folder / "link").symlink_to(folder / "by hand")
        Volume(folder / "new").make_room(PLENTY, sorted(keep))
        stays = {p for m, p in paths.items() if m.removeprefix("partial of ") in {*keep, "new"}}
        assert there(folder) == stays | {"by hand", "file", "link"}


def test_no_more_goes_than_has_to_and_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("newer", "oldest", "used", "partial of newer")
    paths = [brought(tmp_path, name, age) for age, name in enumerate(names)]
    order = [paths[3], "oldest", "newer"]
    for count in range(len(order) + 1):
        left = there(tmp_path)
        assert left == {*order[count:], "used"}
        monkeypatch.setattr(Volume, "_free", property(lambda _: -len(there(tmp_path))))
        monkeypatch.setattr(volume_module, "_SPARE_BYTES", 0)
        Volume(tmp_path / "new").make_room(-len(left) + 1, ["used"])


def test_a_model_whose_loader_is_at_work_stays(tmp_path: Path) -> None:
    brought(tmp_path, "other")

    async def main() -> None:
        async with Volume(tmp_path / "other").lock(lambda: None):
            Volume(tmp_path / "new").make_room(PLENTY, ["new"])

    asyncio.run(main())
    assert there(tmp_path) == {"other"}
    Volume(tmp_path / "new").make_room(PLENTY, ["new"])
    assert there(tmp_path) == set()


def test_a_model_that_is_half_removed_is_no_model_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought(tmp_path, "old")

    def killed(_path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            Volume(tmp_path / "new").make_room(PLENTY, ["new"])
    old = Volume(tmp_path / "old")
    assert not old.is_taken
    old.prepare(old.partial("m", "r"))
    assert there(tmp_path) == {old.partial("m", "r").name}


def test_what_does_not_fit_is_refused_with_both_sizes(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "m")
    volume.check_space(1000)
    with pytest.raises(OctavoError) as caught:
        volume.check_space(10**18)
    assert caught.value.kind is VOLUME_FULL
    assert "1,000,000,000.00 GB more needed" in caught.value.message


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, VOLUME_FULL),
        (errno.EDQUOT, VOLUME_FULL),
        (errno.EIO, VOLUME_FAILED),
        (errno.EROFS, VOLUME_FAILED),
        (errno.EACCES, VOLUME_FAILED),
    ],
    ids=errno.errorcode.get,
)
def test_failures_of_the_volume_have_their_names(tmp_path: Path, code: int, kind: object) -> None:
    error = Volume(tmp_path / "m").failed(OSError(code, os.strerror(code)))
    assert error.kind is kind
    assert str(tmp_path) in error.message
