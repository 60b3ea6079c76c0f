"""Every file is brought until it is right, whatever its source does; in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.fakes import FakeEnv
from tests.loader.hub_server import sha256
from tests.sim.loop import run

from octavo.loader.config import LoaderConfig
from octavo.loader.download import Download
from octavo.loader.progress import Progress
from octavo.loader.source import Listing, RemoteFile, TransientError
from octavo.runtime.manifest import FileEntry
from octavo.v1.errors import MODEL_DAMAGED, MODEL_FORBIDDEN, SOURCE_UNREACHABLE, OctavoError

DATA = {name: random.Random(name).randbytes(50_000) for name in ("a", "b", "c", "d", "e")}
FILES = [RemoteFile(name=n, size=len(data), sha256=sha256(data)) for n, data in DATA.items()]
LISTING = Listing(revision="r", files=tuple(FILES))

Behaviour = Callable[[str, int], Iterator[bytes]]
"""What a source yields of a file from a byte on."""


class LoopEnv(FakeEnv):
    """Time is that of the simulated loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()


class Scripted:
    """A source that behaves as a test says."""

    place = "nowhere"

    def __init__(self, behaviour: Behaviour, pause_s: float = 0) -> None:
        self._behaviour = behaviour
        self._pause_s = pause_s
        self.asked: list[tuple[str, int]] = []
        self.open = 0
        self.most_open = 0

    async def list(self) -> Listing:
        return LISTING

    async def read(
        self, _listing: Listing, file: RemoteFile, start: int, /
    ) -> AsyncGenerator[bytes, None]:
        self.asked.append((file.name, start))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            for data in self._behaviour(file.name, start):
                await asyncio.sleep(self._pause_s)
                yield data
        finally:
            self.open -= 1


def honest(name: str, start: int) -> Iterator[bytes]:
    for at in range(start, len(DATA[name]), 7001):
        yield DATA[name][at : at + 7001]


def fetch(
    folder: Path, source: Scripted, connections: int = 2, seed: int = 1
) -> dict[str, FileEntry]:
    config = LoaderConfig(model="hf://a/b", connections=connections)

    async def main() -> dict[str, FileEntry]:
        env = LoopEnv(seed)
        download = Download(source, config, env=env, progress=Progress(env.now))
        return await download.fetch(LISTING, FILES, folder)

    with capture_logs():
        return run(main, rng=random.Random(seed))


def check(folder: Path, found: dict[str, FileEntry]) -> None:
    assert found == {f.name: FileEntry(size=f.size, sha256=f.sha256) for f in FILES}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == DATA


@pytest.mark.parametrize("connections", [1, 3, 64])
def test_as_many_files_at_once_as_are_allowed(tmp_path: Path, connections: int) -> None:
    source = Scripted(honest)
    check(tmp_path, fetch(tmp_path, source, connections))
    assert source.most_open == min(connections, len(FILES))
    assert source.open == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_source_that_fails_anywhere_is_gone_on_with(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    def flaky(name: str, start: int) -> Iterator[bytes]:
        for data in honest(name, start):
            if rng.random() < 0.2:
                yield data[: rng.randrange(len(data))]
                raise TransientError("cut")
            if rng.random() < 0.1:
                return  # ends early without a word
            yield data

    source = Scripted(flaky)
    check(tmp_path, fetch(tmp_path, source, seed=seed))
    assert len(source.asked) > len(FILES)
    assert any(start > 0 for _, start in source.asked)


def test_a_source_may_be_slow_as_long_as_bytes_come(tmp_path: Path) -> None:
    def one_piece(name: str, start: int) -> Iterator[bytes]:
        yield DATA[name][start : start + 7001]
        raise TransientError("cut")

    source = Scripted(one_piece, pause_s=200)
    check(tmp_path, fetch(tmp_path, source, connections=5))
    assert len(source.asked) * 200 > 5 * 300, "longer than the patience with one file"


def test_a_damaged_file_is_brought_again_from_its_beginning(tmp_path: Path) -> None:
    damage = {"c"}

    def once_wrong(name: str, start: int) -> Iterator[bytes]:
        for data in honest(name, start):
            if name in damage and start == 0:
                damage.clear()
                data = bytes(len(data))
            yield data

    source = Scripted(once_wrong)
    check(tmp_path, fetch(tmp_path, source))
    assert source.asked.count(("c", 0)) == 2
    assert len(source.asked) == len(FILES) + 1


def test_a_file_that_is_always_damaged_ends_the_load(tmp_path: Path) -> None:
    def wrong(name: str, start: int) -> Iterator[bytes]:
        yield from honest(name, start) if name != "c" else iter([bytes(len(DATA["c"]))])

    source = Scripted(wrong)
    with pytest.raises(OctavoError) as caught:
        fetch(tmp_path, source)
    assert caught.value.kind is MODEL_DAMAGED
    assert "sends c of hf://a/b damaged, 3 times: its sha256 is" in caught.value.message
    assert source.asked.count(("c", 0)) == 3


def test_a_source_that_sends_nothing_is_given_up(tmp_path: Path) -> None:
    source = Scripted(lambda name, start: iter(()) if name == "c" else honest(name, start))
    with pytest.raises(OctavoError) as caught:
        fetch(tmp_path, source)
    assert caught.value.kind is SOURCE_UNREACHABLE
    assert "nowhere sends nothing of c" in caught.value.message


def test_a_refusal_ends_all_transfers_at_once(tmp_path: Path) -> None:
    refusal = OctavoError(MODEL_FORBIDDEN, place="nowhere", model="m", reason="no")

    def refuse(name: str, start: int) -> Iterator[bytes]:
        if name == "b":
            raise refusal
        return honest(name, start)

    source = Scripted(refuse)
    with pytest.raises(OctavoError) as caught:
        fetch(tmp_path, source, connections=1)
    assert caught.value is refusal
    assert source.asked == [("a", 0), ("b", 0)]
    assert source.open == 0


def test_a_volume_that_fails_ends_the_load(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with pytest.raises(IsADirectoryError):
        fetch(tmp_path, Scripted(honest))
