"""The operator as a process, with the rights that the chart gives it and no others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.bounds import EVENTUALLY_S
from tests.charts.account import Account
from tests.cluster.kubectl import POLL_S
from tests.cluster.kubernetes import Kubernetes

READY_S = 60.0


def account(namespace: str, *others: str) -> Account:
    """Returns the account of an operator for one namespace, or more."""
    return Account("operator", namespace, *others)


class OperatorProcess:
    """An operator for one namespace or more; `start` returns when it knows all that exists.

    Args:
        cluster: where it works.
        namespace: what it serves, and where its account is; see `account`.
        flags: settings.
        server: URL of the API server, if not the cluster's own.
        waits: whether it waits for a lease, and is not ready before it has it.
        others: namespaces that it serves as well.
    """

    def __init__(
        self,
        cluster: Kubernetes,
        namespace: str,
        *flags: str,
        server: str = "",
        waits: bool = False,
        others: tuple[str, ...] = (),
    ) -> None:
        self.namespace = namespace
        self._waits = waits
        self._folder = tempfile.TemporaryDirectory(prefix="octavo-operator-")
        self._log = Path(self._folder.name, "log")
        self._kubeconfig = Path(self._folder.name, "kubeconfig")
        own = account(namespace, *others)
        self._kubeconfig.write_text(json.dumps(own.kubeconfig(cluster, server)))
        self._command = [
            sys.executable, "-m", "octavo.operator", "--log-json", "--status-listen=127.0.0.1:0",
            f"--namespaces={','.join(own.served)}", *flags,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has logged."""
        lines = self._log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**os.environ, "KUBECONFIG": str(self._kubeconfig)},
                stdout=log,
                stderr=log,
            )
        path = "/healthz" if self._waits else "/readyz"
        self.until(lambda: self.status(path) == 200, f"{path} is good", READY_S)
        return self

    def status(self, path: str) -> int:
        """Returns the HTTP status of one of its pages; zero where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port()}{path}", timeout=5) as r:
                code: int = r.status
                return code
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over its labels."""
        url = f"http://127.0.0.1:{self._port()}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
        pattern = rf"^octavo_operator_{name}(?:{{.*}})? (\S+)$"
        return sum(float(value) for value in re.findall(pattern, text, re.MULTILINE))

    def until(
        self, holds: Callable[[], object], what: str, timeout_s: float = EVENTUALLY_S
    ) -> None:
        """Polls until something holds, while the process runs."""
        end = time.monotonic() + timeout_s
        while not holds():
            assert self.is_running, f"it has ended:\n{self._tail()}"
            assert time.monotonic() < end, f"not {what} in {timeout_s:g} s:\n{self._tail()}"
            time.sleep(POLL_S)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Lets it end; returns its exit status."""
        return self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stops it without its notice."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def until_ended(self, timeout_s: float) -> None:
        """Waits until it has ended by itself."""
        assert self._process is not None
        self._process.wait(timeout_s)

    @property
    def log_size(self) -> int:
        return self._log.stat().st_size

    def log_since(self, size: int) -> str:
        """Returns what it has logged since its log had a size."""
        return self._log.read_bytes()[size:].decode()

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            return self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def _port(self) -> int:
        started = [e for e in self.events if e["event"] == "operator_listening"]
        return int(started[-1]["port"]) if started else 0

    def _tail(self) -> str:
        return self._log.read_text(encoding="utf-8")[-3000:]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_running:
            self.kill()
        if error is not None:
            sys.stderr.write(self._tail())
        self._folder.cleanup()
