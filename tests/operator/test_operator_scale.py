"""500 InferenceServices on a real control plane: no storm at the start, silence afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import psutil
import pytest
from tests.cluster.control_plane import ControlPlane
from tests.operator.operator_process import OperatorProcess, account

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

NUM_SERVICES = 500
FIRST_S = 120.0
QUIET_S = 60.0
MAX_RSS = 300 * 1024 * 1024


def test_500_services_are_reconciled_without_a_storm(
    control_plane: ControlPlane, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    account(namespace).bring(control_plane)
    services = [
        {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": f"model-{number}"},
            "spec": {"engine": {}, "model": {"uri": f"file:///models/{number}"}, "replicas": 1},
        }
        for number in range(NUM_SERVICES)
    ]
    control_plane.kubectl.apply(*services, namespace=namespace)
    begin = time.monotonic()
    with OperatorProcess(control_plane, namespace) as operator:
        until(lambda: len(counts(control_plane, namespace)) == NUM_SERVICES, FIRST_S)
        first_s = time.monotonic() - begin
        until(lambda: counts(control_plane, namespace).count("1/1") == NUM_SERVICES, 300)
        all_ready_s = time.monotonic() - begin
        rest(control_plane, namespace)
        before = len(writes(control_plane, namespace))
        restart = time.monotonic()
        time.sleep(QUIET_S)  # a minute without writes can only be waited for
        quiet_s = time.monotonic() - restart
        assert len(writes(control_plane, namespace)) == before
        process = psutil.Process(operator.pid)
        rss, cpu_s = process.memory_info().rss, process.cpu_times().user
        overdue_s = operator.metric("overdue_seconds")
    with capsys.disabled():
        print(  # noqa: T201
            f"\nall children {first_s:.1f} s, all Ready {all_ready_s:.1f} s, {before} writes, "
            f"{quiet_s:.0f} s without any, RSS {rss / 2**20:.0f} MiB, CPU {cpu_s:.1f} s"
        )
    assert rss < MAX_RSS
    assert overdue_s < 1


def counts(control_plane: ControlPlane, namespace: str) -> list[str]:
    """Returns ready and wanted engines of all services that have a status."""
    path = '{range .items[*]}{.status.counts}{"\\n"}{end}'
    text = control_plane.kubectl("get", "ois", "-o", f"jsonpath={path}", namespace=namespace)
    return text.split()


def writes(control_plane: ControlPlane, namespace: str) -> list[str]:
    """Returns what the operator has written."""
    asked = f'"username":"{account(namespace).user}"'
    lines = control_plane.audit_log.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines if asked in line and line.endswith("}")]
    return [e["verb"] for e in events if e["verb"] not in ("get", "list", "watch")]


def rest(control_plane: ControlPlane, namespace: str) -> None:
    """Waits until the operator writes nothing for some seconds."""
    number = -1
    while number != (number := len(writes(control_plane, namespace))):
        time.sleep(5)


def until(holds: Callable[[], bool], timeout_s: float) -> None:
    """Polls, but not so often that the polls are what takes long."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"not in {timeout_s:g} s"
        time.sleep(3)
