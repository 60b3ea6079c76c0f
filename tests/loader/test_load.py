"""Whole loads from both kinds of source: wherever they are cut, the next one ends the same."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.models.tiny_model import weights, write_folder, write_gguf
from tests.loader import hub_server, s3_server
from tests.loader.faulty_server import Fault, FaultyServer
from tests.loader.hub_server import COMMIT, HubServer, serving_hub
from tests.loader.loading import INDEX, SHARDS, check, content, fails, load, repository, wanted
from tests.loader.s3_server import PREFIX, S3Server, serving_s3

from octavo.engine.models.checkpoint import open_checkpoint
from octavo.runtime import manifest
from octavo.v1.errors import (
    BAD_SETTING,
    MODEL_DAMAGED,
    MODEL_MISSING,
    MODEL_UNREADABLE,
    SOURCE_UNREACHABLE,
    TARGET_TAKEN,
)

FILES = repository()
WHOLE = wanted(FILES)
SIZE = sum(map(len, WHOLE.values()))


@dataclass(frozen=True, kw_only=True)
class Place:
    """A source with a model, and how to reach it."""

    server: FaultyServer
    storage: FaultyServer
    """Where the large files come from."""
    model: str
    environ: Mapping[str, str]


def hub_place(hub: HubServer) -> Place:
    environ = {"HF_ENDPOINT": hub.url}
    return Place(server=hub, storage=hub.storage, model=hub_server.MODEL, environ=environ)


def s3_place(s3: S3Server) -> Place:
    return Place(server=s3, storage=s3, model=s3_server.MODEL, environ=s3_server.environ(s3))


@pytest.fixture(scope="module", params=["hub", "s3"])
def servers(request: pytest.FixtureRequest) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch, serving_hub(FILES) as hub, serving_s3(FILES) as s3:
        for name, value in s3_server.environ(s3).items():
            patch.setenv(name, value)
        yield hub_place(hub) if request.param == "hub" else s3_place(s3)


@pytest.fixture
def place(servers: Place) -> Iterator[Place]:
    yield servers
    servers.server.faults = servers.storage.faults = []
    servers.server.is_down = servers.storage.is_down = False


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "m"


def test_a_model_is_loaded_whole_and_nothing_else(place: Place, target: Path) -> None:
    whole = load(target, place.model, place.environ)
    assert check(target, WHOLE) == whole
    assert (whole.model, whole.asked) == (place.model, "")
    if place.model.startswith("hf"):
        assert whole.revision == COMMIT
    asked = " ".join(asked.path for asked in place.server.asked)
    assert not [name for name in ("pickle", ".bin", ".py", "README", "conso") if name in asked]


def test_a_second_run_opens_no_socket(place: Place, target: Path) -> None:
    whole = load(target, place.model, place.environ)
    asked = len(place.server.asked)
    for revision in ("", whole.revision):
        assert load(target, place.model, place.environ, revision=revision) == whole
    assert load(target, place.model, place.environ, verify=True) == whole
    assert len(place.server.asked) == asked


def test_a_name_of_the_same_commit_is_looked_up_and_found_there(tmp_path: Path) -> None:
    with serving_hub(FILES) as hub:
        environ = {"HF_ENDPOINT": hub.url}
        whole = load(tmp_path / "m", hub_server.MODEL, environ)
        sent = hub.storage.sent
        assert load(tmp_path / "m", hub_server.MODEL, environ, revision="v1") == whole
        assert hub.storage.sent == sent


@settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example leaves it clean
)
@given(cuts=st.lists(st.integers(0, SIZE // 5), max_size=4), connections=st.integers(1, 4))
def test_wherever_it_is_cut_the_next_run_ends_the_same(
    place: Place, tmp_path_factory: pytest.TempPathFactory, cuts: list[int], connections: int
) -> None:
    target = tmp_path_factory.mktemp("load") / "m"
    ended = threading.Event()

    def end() -> None:
        place.server.is_down = place.storage.is_down = True
        ended.set()

    for cut in cuts:
        ended.clear()
        place.storage.interrupt(cut, end)
        error = fails(target, place.model, place.environ, connections=connections)
        assert error.kind is SOURCE_UNREACHABLE
        assert ended.wait(10)
        assert not target.exists()
        place.server.is_down = place.storage.is_down = False
    place.storage.interrupt(10**9, end)
    load(target, place.model, place.environ, connections=connections)
    check(target, WHOLE)


def test_what_was_loaded_is_not_loaded_again(place: Place, target: Path) -> None:
    place.storage.faults = [Fault(kind="cut", path=_path(place, SHARDS[1]), at=100_000)]
    fails(target, place.model, place.environ, connections=1)
    place.storage.faults = []
    asked = len(place.storage.asked)
    load(target, place.model, place.environ)
    check(target, WHOLE)
    ranges = [a.range for a in place.storage.asked[asked:] if a.range]
    assert [r.split("-")[0] for r in ranges if not r.startswith("bytes=0-")] == ["bytes=100000"]
    assert len([r for r in ranges if r.startswith("bytes=0-")]) <= 1


def _path(place: Place, name: str) -> str:
    return hub_server.sha256(FILES[name]) if place.model.startswith("hf") else name


def _flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


def _truncate(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size + 1)])


def _zeros(path: Path, rng: random.Random) -> None:
    """A file system that wrote the length before the content."""
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: rng.randrange(size + 1)].ljust(size, b"\0"))


def _lengthen(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 1000)))


def _replace_by_link(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def _replace_by_folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    (path / "deep").mkdir(parents=True)


DAMAGES = [_flip, _truncate, _zeros, _lengthen, _replace_by_link, _replace_by_folder]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_whatever_happens_to_a_partial_model_it_ends_the_same(
    place: Place, target: Path, damage: Callable[[Path, random.Random], None]
) -> None:
    rng = random.Random(damage.__name__)
    place.storage.faults = [Fault(kind="cut", path=_path(place, SHARDS[1]), at=100_000)]
    fails(target, place.model, place.environ, connections=1)
    place.storage.faults = []
    (partial,) = target.parent.glob(".partial-*")
    for path in sorted(partial.iterdir()):
        damage(path, rng)
    load(target, place.model, place.environ)
    check(target, WHOLE)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_damaged_model_is_mended(
    place: Place, target: Path, damage: Callable[[Path, random.Random], None]
) -> None:
    whole = load(target, place.model, place.environ)
    damage(target / SHARDS[0], random.Random(5))
    sent = place.storage.sent
    hidden = damage in (_flip, _zeros)  # of the right size
    assert load(target, place.model, place.environ, verify=hidden) == whole
    check(target, WHOLE)
    assert place.storage.sent - sent < 1.5 * len(FILES[SHARDS[0]]) + 5000, "only what is damaged"


def test_damage_in_the_right_size_is_not_looked_for_unasked(place: Place, target: Path) -> None:
    load(target, place.model, place.environ)
    _flip(target / SHARDS[0], random.Random(1))
    load(target, place.model, place.environ)
    with pytest.raises(AssertionError):
        check(target, WHOLE)


@pytest.mark.parametrize("name", ["config.json", SHARDS[0], INDEX, "tokenizer.json"])
def test_a_wrong_byte_of_the_source_is_found(place: Place, target: Path, name: str) -> None:
    path = _path(place, name) if name in SHARDS else f"/{name}$"
    server = place.storage if name in SHARDS else place.server
    server.faults = [Fault(kind="wrong", path=path, at=len(FILES[name]) // 2)]
    error = fails(target, place.model, place.environ)
    assert error.kind is MODEL_DAMAGED
    assert name in error.message
    assert not target.exists()
    server.faults = [Fault(kind="wrong", path=path, at=len(FILES[name]) // 2, times=2)]
    load(target, place.model, place.environ)
    check(target, WHOLE)


def test_a_source_that_is_down_is_told(place: Place, target: Path) -> None:
    place.server.faults = [Fault(kind="status", status=503)]
    error = fails(target, place.model, place.environ)
    assert error.kind is SOURCE_UNREACHABLE
    assert "503" in error.message
    place.server.faults = [Fault(kind="status", status=503, times=3)]
    load(target, place.model, place.environ, give_up_s=60)
    check(target, WHOLE)


def test_another_model_is_not_touched(place: Place, target: Path) -> None:
    load(target, place.model, place.environ)
    before = content(target)
    for model, revision, found in (
        ("hf://some-org/Other", "", place.model),
        ("s3://weights/other", "", place.model),
    ):
        error = fails(target, model, place.environ, revision=revision)
        assert error.kind is TARGET_TAKEN
        assert found in error.message
    assert content(target) == before


def test_files_of_others_are_not_touched(place: Place, target: Path) -> None:
    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    error = fails(target, place.model, place.environ)
    assert error.kind is TARGET_TAKEN
    assert "files that the loader did not bring" in error.message
    (target / manifest.NAME).write_text("{")
    assert fails(target, place.model, place.environ).kind is TARGET_TAKEN
    assert (target / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("lost", "added", "reason"),
    [
        (["tokenizer.json"], {}, "tokenizer.json is missing"),
        ([SHARDS[1]], {}, f"names '{SHARDS[1]}', which is not beside it"),
        ([], {INDEX: b'{"weight_map": {"a": "../../etc/passwd"}}'}, "which is not beside it"),
        ([INDEX, *SHARDS, "consolidated.safetensors"], {}, "its weights are pickles"),
    ],
)
def test_what_the_engine_could_not_open_is_refused(
    tmp_path: Path, lost: list[str], added: dict[str, bytes], reason: str
) -> None:
    files = {name: data for name, data in FILES.items() if name not in lost} | added
    with serving_hub(files) as hub:
        error = fails(tmp_path / "m", hub_server.MODEL, {"HF_ENDPOINT": hub.url})
        assert error.kind is MODEL_UNREADABLE
        assert reason in error.message
        assert hub.storage.asked == [], "before anything large is loaded"
    assert not (tmp_path / "m").exists()


def test_another_revision_is_not_put_over_a_model_in_use(tmp_path: Path) -> None:
    with serving_hub(FILES) as hub:
        environ = {"HF_ENDPOINT": hub.url}
        load(tmp_path / "m", hub_server.MODEL, environ)
        hub.commit = "f" * 40
        load(tmp_path / "m", hub_server.MODEL, environ)  # a branch is looked up once
        error = fails(tmp_path / "m", hub_server.MODEL, environ, revision="v1")
        assert error.kind is TARGET_TAKEN
        assert f"holds revision {COMMIT}, not revision {hub.commit}" in error.message
        assert fails(tmp_path / "m", hub_server.MODEL, environ, revision="v9").kind is MODEL_MISSING
    check(tmp_path / "m", WHOLE)


def test_an_object_that_was_replaced_is_another_revision(tmp_path: Path) -> None:
    target = tmp_path / "m"
    with pytest.MonkeyPatch.context() as patch, serving_s3(FILES) as s3:
        environ = s3_server.environ(s3)
        for name, value in environ.items():
            patch.setenv(name, value)
        s3.faults = [Fault(kind="cut", path=SHARDS[1], at=100_000)]
        fails(target, s3_server.MODEL, environ)
        s3.faults = []
        s3.objects[f"{PREFIX}/{SHARDS[1]}"] = new = FILES[SHARDS[1]][::-1]
        first = load(target, s3_server.MODEL, environ)
        check(target, WHOLE | {SHARDS[1]: new})
        s3.objects[f"{PREFIX}/config.json"] = b'{"model_type":  "llama"}'
        assert load(target, s3_server.MODEL, environ) == first, "it stays as it was loaded"
        shutil.rmtree(target)
        error = fails(target, s3_server.MODEL, environ, revision=first.revision)
        assert error.kind is MODEL_MISSING
        assert load(target, s3_server.MODEL, environ).revision != first.revision


def test_a_volume_that_is_not_there_is_told(place: Place, tmp_path: Path) -> None:
    assert fails(tmp_path / "no" / "m", place.model, place.environ).kind is BAD_SETTING
    (tmp_path / "file").touch()
    assert fails(tmp_path / "file" / "m", place.model, place.environ).kind is BAD_SETTING
    (tmp_path / "m").write_text("a file")
    assert fails(tmp_path / "m", place.model, place.environ).kind is TARGET_TAKEN


def _files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("shards", [1, 2])
def test_the_engine_opens_what_was_loaded(tmp_path: Path, shards: int) -> None:
    files = _files_of(write_folder(tmp_path / "source", shards=shards))
    with serving_hub(files | {"extra.safetensors": b"never loaded"}) as hub:
        load(tmp_path / "m", hub_server.MODEL, {"HF_ENDPOINT": hub.url})
    checkpoint = open_checkpoint(tmp_path / "m", verify=True)
    assert (checkpoint.model_id, checkpoint.revision) == (hub_server.REPOSITORY, COMMIT)
    for name, tensor in weights().items():
        assert torch.equal(checkpoint.tensor(name), tensor)


def test_the_engine_opens_a_gguf_that_was_loaded(tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "tiny.F32.gguf").read_bytes()
    files = {"tiny.F32.gguf": data, "tiny.Q4_0.gguf": b"another", "config.json": b"{}"}
    with serving_hub(files) as hub:
        environ = {"HF_ENDPOINT": hub.url}
        error = fails(tmp_path / "m", hub_server.MODEL, environ)
        assert "name one behind it; there are tiny.F32.gguf, tiny.Q4_0.gguf" in error.message
        load(tmp_path / "m", f"{hub_server.MODEL}/tiny.F32.gguf", environ)
    check(tmp_path / "m", {"tiny.F32.gguf": data})
    for path in (tmp_path / "m", tmp_path / "m" / "tiny.F32.gguf"):
        checkpoint = open_checkpoint(path, verify=True)
        assert (checkpoint.model_id, checkpoint.revision) == (hub_server.REPOSITORY, COMMIT)
    assert set(checkpoint.tensor_names()) == set(weights())
