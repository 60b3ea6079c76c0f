"""One trace from the client through gateway and engine, told to a collector over OTLP."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import httpx
import pytest
from tests.e2e.collector import TRACEPARENT, Collector, check
from tests.serving import Serving


@pytest.fixture
def collector() -> Iterator[tuple[Collector, int]]:
    made = Collector()
    yield made, made.start("127.0.0.1:0")
    made.stop()


def test_gateway_and_engine_tell_one_trace(
    collector: tuple[Collector, int],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, port = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    serving = Serving(tmp_path_factory.mktemp("logs"))
    answer = httpx.post(
        f"{serving.url}/v1/chat/completions",
        json={"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
        headers={"traceparent": TRACEPARENT},
        timeout=60,
    )
    assert answer.status_code == 200
    spans = made.both()
    serving.end(signal.SIGTERM)
    check(spans)
