from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.cli.api_stand_in import ApiStandIn, api_stand_in, chunk

from octavo.cli.chat import chat, stats
from octavo.cli.client import Answer


@pytest.fixture
def api() -> Iterator[ApiStandIn]:
    with api_stand_in() as api:
        yield api


def converse(api: ApiStandIn, monkeypatch: pytest.MonkeyPatch, *lines: str) -> int:
    typed = iter(lines)
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    monkeypatch.setattr("sys.stdin", Keyboard())
    return chat(api.url, prompt=None, model=None, system="be short")


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_shot_prints_only_the_answer(
    api: ApiStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(api.url, prompt="Hi", model=None, system=None) == 0
    assert capsys.readouterr() == ("Hello, you\n", "")
    assert api.asked[0]["model"] == "first"
    assert api.asked[0]["messages"] == [{"role": "user", "content": "Hi"}]


def test_piped_input_is_the_prompt(
    api: ApiStandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert chat(api.url, prompt=None, model="second", system="be short") == 0
    assert api.asked[0]["model"] == "second"
    assert api.asked[0]["messages"] == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "from a pipe\n"},
    ]


def test_conversation_keeps_its_turns_until_it_is_cleared(
    api: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert converse(api, monkeypatch, "one", "two", "/clear", "three", "/bye") == 0
    roles = [[m["role"] for m in asked["messages"]] for asked in api.asked]  # type: ignore[attr-defined]
    assert roles == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
        ["system", "user"],
    ]


def test_stats_raw_and_unknown_commands(
    api: ApiStandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    converse(api, monkeypatch, "/stats", "/raw", "one", "/stats", "/nonsense", "/bye")
    shown = capsys.readouterr().out
    assert "no answer yet" in shown
    assert "data: [DONE]" in shown
    assert "x-octavo-route" in shown
    assert "there is no command /nonsense" in shown


def test_conversation_goes_on_after_an_error(
    api: ApiStandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api.stream = [chunk("half")]
    assert converse(api, monkeypatch, "one", "/stats", "/bye") == 0
    shown = capsys.readouterr()
    assert "half\n" in shown.out
    assert shown.err.startswith("error[OCT-2003]: ")


def test_cut_answer_is_status_one_and_says_so(
    api: ApiStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    api.stream = [chunk("half")]
    assert chat(api.url, prompt="Hi", model=None, system=None) == 1
    shown = capsys.readouterr()
    assert shown.out == "half\n"
    assert shown.err.startswith("error[OCT-2003]: ")


@pytest.mark.parametrize(
    ("status", "code", "exit_status"),
    [(400, "invalid_value", 1), (404, "model_not_found", 1), (503, "model_loading", 3)],
)
def test_refusal_is_a_negative_answer_unless_nothing_serves_yet(
    api: ApiStandIn, status: int, code: str, exit_status: int
) -> None:
    api.refusal = (status, {"error": {"message": "no", "code": code}})
    assert chat(api.url, prompt="Hi", model="m", system=None) == exit_status


def test_endpoint_that_is_away_is_status_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert chat("http://127.0.0.1:1", prompt="Hi", model=None, system=None) == 3
    assert "help: start it with: octavo serve" in capsys.readouterr().err


def heed_ctrl_c() -> None:
    """Undoes what a suite that runs in the background has inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_stops_an_answer(api: ApiStandIn) -> None:
    api.gate.clear()
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    command = [sys.executable, "-m", "octavo.cli", "chat", "--url", api.url, "-p", "Hi"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env=environ,
        preexec_fn=heed_ctrl_c,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"Hello"
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=10)
    assert (process.returncode, rest) == (1, b"\n")


def test_numbers_of_an_answer_have_a_line_each() -> None:
    answer = Answer(finish_reason="stop", usage={"prompt_tokens": 3}, metrics={"queue_ms": 0.5})
    assert [line.split() for line in stats(answer).splitlines()] == [
        ["finish_reason", "stop"],
        ["prompt_tokens", "3"],
        ["queue_ms", "0.5"],
    ]
