from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.cli.__main__ import main


def test_status_of_the_command_is_the_status_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["octavo", "serv"])
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 2
    assert "Did you mean 'serve'?" in capsys.readouterr().err


def test_reader_that_leaves_early_is_no_error() -> None:
    command = (
        f"{sys.executable} -m octavo.cli config show --origin | head -n 1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("replicas")
