"""The real process: killed anywhere, told to end, watched, and what it leaves for its readers."""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.loader import hub_server, s3_server
from tests.loader.faulty_server import Fault
from tests.loader.hub_server import HubServer, serving_hub
from tests.loader.loading import SHARDS, check, repository, start, wanted
from tests.loader.s3_server import serving_s3
from tests.loader.small_volume import on_small_volume

from octavo.runtime import manifest

FILES = repository()
WHOLE = wanted(FILES)
SIZE = sum(map(len, WHOLE.values()))
TOKEN = "hf_canarycanarycanary"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serving_hub(FILES, TOKEN) as server:
        yield server


def environ(hub: HubServer) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Returns exit status and output of a loader."""
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def run(
    target: Path, env: Mapping[str, str], *arguments: str, model: str = hub_server.MODEL
) -> tuple[int, str]:
    return ended(start(target, model, env, *arguments))


def test_a_model_is_there_and_a_second_run_is_done_in_a_second(
    hub: HubServer, tmp_path: Path
) -> None:
    status, output = run(tmp_path / "m", environ(hub), "--revision", "v1")
    assert status == 0, output
    whole = check(tmp_path / "m", WHOLE)
    assert whole.asked == "v1"
    events = [json.loads(line) for line in output.splitlines()]
    assert [e["stage"] for e in events if e["event"] == "progress"] == [
        *("listing", "loading", "naming")
    ]
    assert events[-1]["event"] == "loaded"
    assert events[-1]["text"].startswith(f"{hub_server.MODEL} at {whole.revision} is in ")
    asked, began = len(hub.asked), time.monotonic()
    status, output = run(tmp_path / "m", environ(hub), "--revision", "v1")
    assert (status, len(hub.asked)) == (0, asked)
    assert json.loads(output)["seconds"] < 0.2
    assert time.monotonic() - began < 10  # starting Python on a busy machine included


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_byte_the_next_run_ends_the_same(
    hub: HubServer, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    target = tmp_path / "m"
    for _ in range(3):
        process = start(target, hub_server.MODEL, environ(hub), "--connections", "2")
        hub.storage.interrupt(rng.randrange(SIZE // 2), process.kill)
        status, output = ended(process)
        if status == 0:
            break
        assert status == -signal.SIGKILL, output
        assert not target.exists()
    hub.storage.interrupt(10**9, lambda: None)
    status, output = run(target, environ(hub))
    assert status == 0, output
    check(target, WHOLE)


def test_sigterm_ends_it_at_once_and_leaves_what_resumes(hub: HubServer, tmp_path: Path) -> None:
    with hub.storage.stalled(150_000) as reached:
        process = start(tmp_path / "m", hub_server.MODEL, environ(hub))
        assert reached.wait(30)
        (partial,) = tmp_path.glob(".partial-*")
        began = time.monotonic()
        process.terminate()
        status, output = ended(process)
        assert time.monotonic() - began < 2
    assert status == 128 + signal.SIGTERM
    assert output.splitlines()[-1] == "ended by SIGTERM; the next loader goes on from here"
    kept = {path.name: path.stat().st_size for path in partial.iterdir()}
    asked = len(hub.storage.asked)
    assert run(tmp_path / "m", environ(hub))[0] == 0
    ranges = {a.range.partition("-")[0] for a in hub.storage.asked[asked:]}
    assert ranges == {f"bytes={kept[name]}" for name in SHARDS}
    check(tmp_path / "m", WHOLE)


def test_a_second_loader_waits_for_the_first(hub: HubServer, tmp_path: Path) -> None:
    with hub.storage.stalled(50_000) as reached:
        first = start(tmp_path / "m", hub_server.MODEL, environ(hub))
        assert reached.wait(30)
        second = start(tmp_path / "m", hub_server.MODEL, environ(hub))
        assert _text_of_first_line(second) == "waiting for another loader"
    assert ended(first)[0] == ended(second)[0] == 0
    assert hub.storage.sent == sum(len(FILES[name]) for name in SHARDS), "each byte once"
    check(tmp_path / "m", WHOLE)


def test_a_killed_loader_leaves_no_lock(hub: HubServer, tmp_path: Path) -> None:
    with hub.storage.stalled(50_000) as reached:
        first = start(tmp_path / "m", hub_server.MODEL, environ(hub))
        assert reached.wait(30)
        second = start(tmp_path / "m", hub_server.MODEL, environ(hub))
        assert _text_of_first_line(second) == "waiting for another loader"
        first.kill()
        ended(first)
    status, output = ended(second)
    assert status == 0, output
    check(tmp_path / "m", WHOLE)


def _text_of_first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["text"])


def test_progress_is_told_every_five_seconds_and_never_goes_back(tmp_path: Path) -> None:
    files = repository(2000)
    with serving_hub(files) as hub:
        slow = Fault(kind="slow", pause_s=0.1)
        hub.storage.faults = [slow, Fault(kind="cut", at=500_000, times=1)]
        environ = {"HF_ENDPOINT": hub.url}
        process = start(tmp_path / "m", hub_server.MODEL, environ, "--connections", "1")
        assert process.stdout is not None
        loading, times = [], []
        for line in process.stdout:
            event = json.loads(line)
            if event["stage"] == "loading":
                loading.append(event)
                times.append(time.monotonic())
            if len(loading) == 3:
                break
        process.kill()
        ended(process)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) < 6  # one second of it for a busy machine
    done = [line["done_bytes"] for line in loading]
    assert done == sorted(done)
    assert done[-1] > done[0]
    assert loading[-1]["retries"] == 1
    assert re.fullmatch(r"loading, 1 of 3 MB, 0\.\d MB/s, \d+ s left", loading[-1]["text"])


@pytest.mark.parametrize(
    ("arguments", "change", "status", "code", "text"),
    [
        ([], {"HF_TOKEN": "hf_wrong"}, 1, "OCT-1212", "the token in HF_TOKEN is not valid"),
        (["--revision", "v9"], {}, 1, "OCT-1213", "there is no revision 'v9'"),
        (["--model", "hf://a/b"], {}, 1, "OCT-1213", "there is none of this name"),
        (["--model", "ftp://a/b"], {}, 2, "OCT-1205", "is neither hf://"),
        (["--target", "/no/such/place"], {}, 2, "OCT-1205", "in a folder that exists"),
        (
            ["--give-up-s", "0"],
            {"HF_ENDPOINT": "http://127.0.0.1:9"},
            3,
            "OCT-1214",
            "nothing came",
        ),
    ],
    ids=["token", "revision", "name", "scheme", "target", "network"],
)
def test_the_last_words_are_for_people_and_for_machines(
    hub: HubServer,
    tmp_path: Path,
    arguments: list[str],
    change: dict[str, str],
    status: int,
    code: str,
    text: str,
) -> None:
    words = tmp_path / "words"
    found, output = run(
        tmp_path / "m", environ(hub) | change, "--termination-log", str(words), *arguments
    )
    assert found == status, output
    last = json.loads(words.read_text())
    assert last.keys() == {"code", "text", "help"}
    assert last["code"] == code
    assert text in last["text"]
    assert output.splitlines()[-2:] == [f"error[{code}]: {last['text']}", f"  help: {last['help']}"]
    assert "Traceback" not in output
    assert not (tmp_path / "m").exists()


def test_a_bucket_is_found_by_its_variables_and_a_kill_changes_nothing(tmp_path: Path) -> None:
    with serving_s3(FILES) as s3:
        process = start(tmp_path / "m", s3_server.MODEL, s3_server.environ(s3))
        s3.interrupt(100_000, process.kill)
        assert ended(process)[0] == -signal.SIGKILL
        s3.interrupt(10**9, lambda: None)
        for _ in range(2):
            status, output = run(tmp_path / "m", s3_server.environ(s3), model=s3_server.MODEL)
            assert status == 0, output
    check(tmp_path / "m", WHOLE)


def test_secrets_are_in_no_output(hub: HubServer, tmp_path: Path) -> None:
    hub.storage.faults = [Fault(kind="cut", at=1000, times=2), Fault(kind="status", times=1)]
    status, output = run(tmp_path / "m", environ(hub))
    assert status == 0
    hub.gated = True
    _, refused = run(tmp_path / "n", environ(hub), "--termination-log", str(tmp_path / "words"))
    with serving_s3(FILES) as s3:
        keys = s3_server.environ(s3) | {"AWS_ACCESS_KEY_ID": "someone"}
        _, denied = run(tmp_path / "o", keys, model=s3_server.MODEL)
    assert "error[OCT-1212]" in refused
    assert "error[OCT-1212]" in denied
    words = tmp_path / "more words"
    broken = environ(hub) | {"HF_TOKEN": f"{TOKEN}\n{TOKEN}"}
    status, unsent = run(tmp_path / "p", broken, "--termination-log", str(words))
    assert status == 2
    texts = [output, refused, denied, unsent, words.read_text(), (tmp_path / "words").read_text()]
    texts.append((tmp_path / "m" / manifest.NAME).read_text())
    for secret in (TOKEN, "Signature=", "nobody checks it here"):
        assert [text for text in texts if secret in text] == []


def test_words_that_cannot_be_left_are_no_second_failure(hub: HubServer, tmp_path: Path) -> None:
    status, output = run(
        tmp_path / "m", environ(hub), "--termination-log", str(tmp_path / "no" / "words"),
        "--revision", "v9",
    )  # fmt: skip
    assert status == 1
    assert "termination_log_failed" in output
    assert output.splitlines()[-2].startswith("error[OCT-1213]")


def test_what_does_not_fit_is_refused_before_it_is_loaded(hub: HubServer, tmp_path: Path) -> None:
    files = repository(20_000)
    with serving_hub(files) as large:
        env = {"HF_ENDPOINT": large.url}

        def scenario() -> None:
            status, output = run(tmp_path / "m", env)
            assert status == 4, output
            assert re.search(r"is too small: 0\.03 GB more needed, 0\.0\d GB free", output)
            assert large.storage.asked == []
            assert not (tmp_path / "m").exists()

        on_small_volume(tmp_path, 20, scenario)


def test_a_volume_that_fills_up_meanwhile_is_told(tmp_path: Path) -> None:
    files = repository(8_000)  # 14 MB
    with serving_hub(files) as hub:
        env = {"HF_ENDPOINT": hub.url}

        def scenario() -> None:
            with hub.storage.stalled(4 << 20) as reached:
                process = start(tmp_path / "m", hub_server.MODEL, env, "--connections", "1")
                assert reached.wait(30)
                (tmp_path / "others").write_bytes(bytes(16 << 20))
            status, output = ended(process)
            assert status == 4, output
            assert "error[OCT-1215]" in output
            assert not (tmp_path / "m").exists()
            (tmp_path / "others").unlink()
            asked = len(hub.storage.asked)
            status, output = run(tmp_path / "m", env)
            assert status == 0, output
            first = hub.storage.asked[asked].range
            assert int(first.removeprefix("bytes=").partition("-")[0]) > 1 << 20, "it goes on"
            check(tmp_path / "m", wanted(files))

        on_small_volume(tmp_path, 26, scenario)


def test_another_revision_takes_the_room_of_one_that_nobody_uses(tmp_path: Path) -> None:
    files = repository(5_000)  # 9 MB
    with serving_hub(files) as hub:
        env = {"HF_ENDPOINT": hub.url}

        def scenario() -> None:
            for name, keep in (("v1", "v1"), ("v2", "v1,v2")):
                status, output = run(tmp_path / name, env, "--keep", keep)
                assert status == 0, output
            assert "removing_model" not in output
            status, output = run(tmp_path / "v3", env, "--keep", "v1,v2,v3")
            assert status == 4, output
            assert "error[OCT-1215]" in output
            for name in ("v1", "v2"):
                check(tmp_path / name, wanted(files), alone=False)
            status, output = run(tmp_path / "v3", env, "--keep", "v2,v3")
            assert status == 0, output
            assert output.count("removing_model") == 1
            assert not (tmp_path / "v1").exists()
            for name in ("v2", "v3"):
                check(tmp_path / name, wanted(files))

        on_small_volume(tmp_path, 28, scenario)


BROKEN = """
import os, sys
from octavo.loader import process
from octavo.loader.config import LoaderConfig

class Load:
    def __init__(self, *arguments):
        raise RuntimeError("a bug")

process.Load = Load
sys.exit(process.run(LoaderConfig(termination_log=sys.argv[1]), os.environ))
"""


def test_a_bug_has_an_id_and_its_trace_in_the_log(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path / "words")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 5
    words = json.loads((tmp_path / "words").read_text())
    assert words["code"] == "OCT-5002"
    (line,) = [json.loads(x) for x in done.stderr.splitlines() if x.startswith("{")]
    assert line["event"] == "loader_broke"
    assert line["id"] in words["text"]
    assert "RuntimeError: a bug" in line["exception"]
