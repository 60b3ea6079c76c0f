"""The engine's thread loads, steps, stops and tells its failures."""

from __future__ import annotations

import threading
import time

from tests.engine.harness import Engine, generate

from octavo.engine.engine_thread import EngineThread
from octavo.engine.stepper import Bundle, Stepper, Submit


def wait(event: threading.Event) -> None:
    assert event.wait(10)


def test_commands_put_from_another_thread_are_run_without_waiting_for_the_heartbeat() -> None:
    done = threading.Event()
    failures: list[BaseException] = []
    thread: EngineThread

    def publish(bundle: Bundle) -> None:
        if any(d.HasField("usage") for _, d in bundle.deltas):
            done.set()

    def load() -> Stepper:
        return Stepper(Engine().core, publish=publish, wake=thread.wake, clock=time.monotonic)

    thread = EngineThread(load, failures.append)
    thread.start()
    while thread.stepper is None:
        time.sleep(0.001)
    thread.stepper.put(Submit(proto=generate([1] * 5, max_tokens=4), sink=None))
    wait(done)
    thread.stop()
    assert failures == []


def test_a_failed_load_is_told() -> None:
    failed = threading.Event()
    failures: list[BaseException] = []

    def load() -> Stepper:
        raise RuntimeError("no weights")

    def tell(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    thread = EngineThread(load, tell)
    thread.start()
    wait(failed)
    assert str(failures[0]) == "no weights"
    assert thread.stepper is None
    thread.stop()
