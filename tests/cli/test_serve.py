"""The quick start with the real model: one command, then clients, then the end of every process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import httpx
import psutil
import pytest
from tests.serving import Serving, command, environ


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    # Few tokens fit, as a client without a limit gets all of them.
    running = Serving(tmp_path_factory.mktemp("logs"), "--max-model-len", "128")
    yield running
    running.close()


def test_first_line_says_what_is_served(serving: Serving) -> None:
    first = serving.shown.splitlines()[0]
    assert first.startswith(f"octavo {version('octavo')}   smollm2 · bfloat16 · 128 tokens · CPU, ")


def test_printed_curl_line_works(serving: Serving) -> None:
    curl, no_buffer, url, data, body = shlex.split(serving.line("Try"))
    assert [curl, no_buffer, data] == ["curl", "-N", "-d"]
    text = httpx.post(url, content=body, timeout=60).text
    assert text.startswith("data: {")
    assert text.endswith("data: [DONE]\n\n")


def test_chat_answers_once(serving: Serving) -> None:
    done = subprocess.run(
        command("chat", "--url", serving.url, "-p", "Say hello."),
        capture_output=True,
        text=True,
        check=True,
        env=environ(),
    )
    assert done.stdout.strip()
    assert done.stderr == ""


def test_record_of_a_request_is_kept_in_the_embedded_store(serving: Serving) -> None:
    body = {"model": "smollm2", "prompt": "One two", "max_tokens": 2}
    answer = httpx.post(f"{serving.url}/v1/completions", content=json.dumps(body), timeout=60)
    path = f"{serving.url}/v1/requests/{answer.headers['x-request-id']}"
    for _ in range(50):
        record = httpx.get(path)
        if record.status_code == 200 and record.json().get("state") == "finished":
            break
        time.sleep(0.1)
    assert record.json()["state"] == "finished", record.text
    assert len(serving.pids("valkey-server")) == 1


def test_nothing_listens_beyond_loopback(serving: Serving) -> None:
    listening = {
        connection.laddr.ip.removeprefix("::ffff:")
        for child in serving.children
        for connection in child.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_engine_killed_while_serving_comes_back(serving: Serving) -> None:
    (engine,) = serving.pids("octavo.engine")
    os.kill(engine, signal.SIGKILL)
    serving.read_until("engine-0 serves again")
    assert "engine-0 ended: SIGKILL" in serving.shown
    body = {"model": "smollm2", "prompt": "One two", "max_tokens": 1}
    for _ in range(100):
        answer = httpx.post(f"{serving.url}/v1/completions", content=json.dumps(body), timeout=60)
        if answer.status_code == 200:
            break
        time.sleep(0.1)
    assert answer.status_code == 200, answer.text
    serving.children = psutil.Process(serving.process.pid).children(recursive=True)


def test_ctrl_c_drains_and_ends_every_process(serving: Serving) -> None:
    assert serving.end(signal.SIGINT) == 0
    assert serving.shown.rstrip().endswith("draining; Ctrl-C again to kill")
    logs = Path(serving.line("Logs"))
    assert {path.name for path in logs.iterdir()} == {"engine-0.log", "gateway.log", "valkey.log"}


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["no-such-model"], 3, "OCT-1202"),
        (["--kv-bytes", "1000"], 4, "OCT-1204"),
    ],
    ids=["missing model", "too little memory"],
)
def test_start_that_fails_is_one_clear_line(
    arguments: list[str], status: int, code: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        command("-q", "serve", "--port", "0", "--log-dir", str(tmp_path), *arguments),
        capture_output=True,
        text=True,
        check=False,
        env=environ() | {"HF_HUB_OFFLINE": "1"},
    )
    error, advice = done.stderr.splitlines()
    assert error.startswith(f"error[{code}]: ")
    assert advice.startswith("  help: ")
    assert (done.returncode, done.stdout) == (status, "")
