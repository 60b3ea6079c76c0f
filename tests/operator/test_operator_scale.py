"""500 InferenceServices on a real control plane: no storm at the start, silence afterwards.

A few cannot be: each says why, and holds up nobody.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from tests.cluster.api import Object
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
    services = [service(f"model-{number}") for number in range(NUM_SERVICES)]
    # Listed before, among and behind the others: whatever goes wrong with one is its own affair.
    bad = {
        f"{name}-{kind}": BAD[kind] for name in ("a", "model-2", "z") for kind in ("spec", "write")
    }
    services += [service(name, **spec) for name, (_, spec) in bad.items()]
    control_plane.kubectl.apply(*services, namespace=namespace)
    begin = time.monotonic()
    with OperatorProcess(control_plane, namespace) as operator:
        until(lambda: len(counts(control_plane, namespace)) == NUM_SERVICES, FIRST_S)
        first_s = time.monotonic() - begin
        until(lambda: counts(control_plane, namespace).count("1/1") == NUM_SERVICES, 300)
        all_ready_s = time.monotonic() - begin
        told = {name: reason(control_plane, namespace, name) for name in bad}
        assert told == {name: why for name, (why, _) in bad.items()}
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


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    # What the schema lets pass and the operator refuses.
    "spec": (
        "InvalidSpec",
        {"cache": {"host": "2Gi"}, "engine": {"resources": {"limits": {"memory": "1Gi"}}}},
    ),
    # What only the API server refuses, whenever it is tried again.
    "write": ("WriteRefused", {"engine": {"tolerations": [{"effect": "NoSchedule"}]}}),
}
"""Specs that cannot be, and what is said of them."""


def service(name: str, **spec: Any) -> Object:
    """An InferenceService whose model is in the image."""
    given = {"engine": {}, "model": {"uri": f"file:///models/{name}"}, "replicas": 1} | spec
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": given,
    }


def reason(control_plane: ControlPlane, namespace: str, name: str) -> str:
    """Returns why a service is not Ready."""
    found = control_plane.kubectl.get("ois", name, namespace=namespace)
    said = found.get("status", {}).get("conditions", [])
    return next((str(c["reason"]) for c in said if c["type"] == "Ready"), "")


def counts(control_plane: ControlPlane, namespace: str) -> list[str]:
    """Returns ready and wanted engines of all good services that have a status."""
    path = '{range .items[*]}{.metadata.name} {.status.counts}{"\\n"}{end}'
    text = control_plane.kubectl("get", "ois", "-o", f"jsonpath={path}", namespace=namespace)
    shown = [line.split() for line in text.splitlines()]
    return [words[1] for words in shown if len(words) > 1 and not is_bad(words[0])]


def is_bad(name: str) -> bool:
    """Tells whether a service, or what it is to have, cannot be."""
    return any(name.endswith((f"-{kind}", f"-{kind}-engine")) for kind in BAD)


def writes(control_plane: ControlPlane, namespace: str) -> list[str]:
    """Returns what the operator has written, but for what is refused each time."""
    asked = f'"username":"{account(namespace).user}"'
    lines = control_plane.audit_log.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines if asked in line and line.endswith("}")]
    return [
        event["verb"]
        for event in events
        if event["verb"] not in ("get", "list", "watch")
        and not is_bad(event["objectRef"].get("name", ""))
    ]


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
