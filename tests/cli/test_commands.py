"""The command line as users meet it: real processes, exit status, both streams."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli.commands import run


def octavo(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-m", "octavo.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": paths} | environ,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["config", "show"]])
def test_command_line_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, os; from octavo.cli.commands import run;"
        f"run({arguments!r}, {{}});"
        "heavy = {'torch', 'numpy', 'grpc', 'rich', 'httpx', 'transformers'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": paths},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_quick_answers_take_little_more_than_python_itself(flag: str) -> None:
    """In processor time, least of some: a slow or busy machine takes longer for both."""

    def cost(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # 0.11 s where --version takes 0.15; grpc would add 0.17, torch 2.
    known = min(cost("-c", "import asyncio") for _ in range(3))
    assert min(cost("-m", "octavo.cli", flag) for _ in range(3)) < 3 * known


def test_help_lists_the_verbs_in_order_of_use() -> None:
    text = octavo("--help").stdout
    places = [text.index(f"\n  {verb} ") for verb in ("serve", "chat", "config", "engine")]
    assert places == sorted(places)


def test_serve_help_is_grouped_with_unit_and_default() -> None:
    text = octavo("serve", "--help", COLUMNS="200").stdout
    assert text.index("\nServe:") < text.index("\nEngine:") < text.index("\nGateway:")
    assert "--max-model-len TOKENS" in text
    assert "[default: 8000]" in text
    assert "--report-fd" not in text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serve", "--prot", "1"], "OCT-1206", "did you mean --port?"),
        (["serve", "--port", "x"], "OCT-1205", "port = 'x' (flag --port)"),
        (["serve", "--replicas", "0"], "OCT-1205", "must be at least 1"),
        (["serve", "m", "--model", "n"], "OCT-1211", "the model is given twice"),
        (["serve", "--host", "0.0.0.0"], "OCT-1205", "--no-auth allows it"),
        (["chat", "--url", "http://[::1"], "OCT-1211", "the URL is not of the form"),
        (["serv"], "OCT-1211", "Did you mean 'serve'?"),
        (["config", "explain", "prot"], "OCT-1206", "did you mean port?"),
        (["config", "show", "--config", "no.toml"], "OCT-1205", "No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistake_is_one_line_with_code_and_help(
    arguments: list[str], code: str, words: str
) -> None:
    done = octavo(*arguments)
    error, advice = done.stderr.splitlines()
    assert error.startswith(f"error[{code}]: ")
    assert words in error
    assert advice.startswith("  help: ")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("verb", [["serve"], ["config", "show"], ["engine"], ["gateway"]])
def test_unknown_variable_is_an_error_with_the_nearest_name(verb: list[str]) -> None:
    done = octavo(*verb, OCTAVO_PROT="1")
    assert done.returncode == 2
    assert "OCTAVO_PROT (environment); did you mean OCTAVO_PORT?" in done.stderr


def test_unknown_key_of_the_file_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text("max_model_length = 5\n")
    done = octavo("config", "show", OCTAVO_CONFIG=str(tmp_path / "o.toml"))
    assert done.returncode == 2
    assert "did you mean max_model_len?" in done.stderr


def test_host_that_others_reach_is_taken_with_no_auth(tmp_path: Path) -> None:
    # A taken port ends the start right after the check of the host.
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = octavo("serve", "--host", "0.0.0.0", "--no-auth", "--port", port,
                      "--log-dir", str(tmp_path))  # fmt: skip
    assert done.stderr.startswith(f"error[OCT-1201]: port {port} on 0.0.0.0 is taken")


def test_port_in_use_is_one_line_and_status_three(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = octavo("serve", "--port", port, "--log-dir", str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == f"error[OCT-1201]: port {port} on 127.0.0.1 is taken"
    assert list(tmp_path.iterdir()) == []


def test_redis_that_is_away_is_one_line_and_status_three(tmp_path: Path) -> None:
    done = octavo("-q", "serve", "--port", "0", "--redis", "redis://127.0.0.1:1/0",
                  "--log-dir", str(tmp_path))  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.startswith("error[OCT-1207]: Redis at 127.0.0.1:1 does not answer")


def test_role_takes_the_flags_of_its_process() -> None:
    done = octavo("gateway", "--help")
    assert done.returncode == 0
    assert "--record-ttl-s" in done.stdout
    assert octavo("engine", "--modle", "x").returncode == 2


def test_config_show_prints_json() -> None:
    shown = json.loads(octavo("config", "show", "--json", "--port", "9").stdout)
    assert shown["port"] == 9


def test_unexpected_error_is_one_line_and_its_trace_only_with_v(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise ZeroDivisionError("x")

    monkeypatch.setattr("octavo.cli.configuration.show", broken)
    assert run(["config", "show"], {}) == 5
    assert capsys.readouterr().err.startswith("error[OCT-5002]: ZeroDivisionError: x\n")
    assert run(["-v", "config", "show"], {}) == 5
    assert "Traceback" in capsys.readouterr().err
