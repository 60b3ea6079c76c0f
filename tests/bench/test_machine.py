from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest
from bench.machine import Meter, memory_of, read_machine

SPINNING = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"


def test_machine_says_what_it_is() -> None:
    machine = read_machine()
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.cpu in str(machine)
    assert f"load before {machine.load_average:.2f}" in str(machine)


def test_children_of_the_server_are_counted() -> None:
    server = subprocess.Popen([sys.executable, "-c", SPINNING], process_group=0)
    try:
        meter = Meter(server.pid)
        while (load := meter.read()).server_cpu_s is None or load.server_cpu_s < 0.3:
            time.sleep(0.05)
        assert load.client_cpu_s < 0.3
        assert load.foreign_cores is not None
        parts = memory_of(server.pid)
        assert len(parts) == 2
        assert load.peak_rss_mib == pytest.approx(sum(part.peak_rss_mib for part in parts), rel=0.2)
        assert all(2 < part.peak_rss_mib < 200 for part in parts)
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def test_without_a_process_only_the_client_is_measured() -> None:
    load = Meter(None).read()
    assert load.client_cpu_s >= 0
    assert load.server_cpu_s is None
    assert load.peak_rss_mib is None


def test_process_that_is_not_there_is_refused() -> None:
    with pytest.raises(psutil.NoSuchProcess):
        Meter(2**22 + 1)
