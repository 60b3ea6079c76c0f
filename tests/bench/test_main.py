from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.__main__ import main
from tests.bench.stand_in import DONE, StandIn, served, text_event, usage_event
from tests.bench.vocabulary import word_tokenizer

ANSWER = (text_event("one"), text_event(" two"), usage_event(128, 128, 0), DONE)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    word_tokenizer().save(str(path))
    return path


def test_two_servers_are_measured_in_turns_and_compared(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(StandIn(ANSWER)) as ours, served(StandIn(ANSWER)) as peer:
        to_file = ["--json", str(tmp_path / "out.json")]
        small = ["--workloads", "W1", "--runs", "2", "--tokenizer", str(tokenizer)]
        code = main(["--url", ours.url, "--compare", f"peer={peer.url}", *small, *to_file])
    assert code == 0
    session = json.loads((tmp_path / "out.json").read_bytes())
    assert [(r["target"], r["run"]) for r in session["results"]] == [
        ("octavo", 1),
        ("peer", 1),
        ("peer", 2),
        ("octavo", 2),
    ]
    assert "octavo: better than peer by" in capsys.readouterr().out


def test_no_prompt_is_sent_twice(tokenizer: Path) -> None:
    with served(StandIn(ANSWER)) as server:
        small = ["--workloads", "W1", "--runs", "2", "--tokenizer", str(tokenizer)]
        main(["--url", server.url, "--compare", f"again={server.url}", *small])
    prompts = [tuple(body["prompt"][:32]) for _, body in server.asked]
    assert len(prompts) == 2 * (1 + 16) + 2 * 2 * 4
    assert len(set(prompts)) == len(prompts)


def test_failed_requests_make_the_exit_status_one(
    tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(StandIn((b"busy",), status=503)) as server:
        code = main(
            ["--url", server.url, "--workloads", "W1", "--runs", "1", "--tokenizer", str(tokenizer)]
        )
    assert code == 1
    assert "4 of 4 failed: HTTP 503: busy" in capsys.readouterr().out


def test_server_that_is_not_there_gives_one_line(
    tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", "http://127.0.0.1:1", "--tokenizer", str(tokenizer)]) == 2
    assert capsys.readouterr().err.startswith("bench: Cannot connect")


def test_tokenizer_that_is_not_there_gives_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--tokenizer", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_servers_of_one_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--compare", "octavo=http://127.0.0.1:1"]) == 2
    assert "name of its own" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["peer", "=http://x", "peer=ftp://x", "peer=http://x,y"])
def test_malformed_server_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--compare", text])
    assert "argument --compare" in capsys.readouterr().err
