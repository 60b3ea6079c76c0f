from __future__ import annotations

import asyncio

import pytest
from tests.gateway.api.scripted import World


@pytest.mark.parametrize("path", ["/health", "/healthz", "/", "/metrics"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probes(path: str, method: str) -> None:
    response = asyncio.run(World().ask(method, path, b""))
    assert response.status == 200
    assert response.headers["x-request-id"]


def test_metrics_are_in_prometheus_format() -> None:
    response = World().get("/metrics")
    assert b"# HELP " in response.body
    assert response.headers["content-type"].startswith("text/plain")


def test_the_root_names_the_endpoints() -> None:
    assert "/v1/chat/completions" in World().get("/").json["endpoints"]


def test_ready() -> None:
    assert World().get("/readyz").json == {"ready": True, "stage": "ready", "eta_ms": 0}


def test_request_records_are_shown_by_either_id() -> None:
    assert World().get("/v1/requests/known").json["state"] == "finished"
    assert World().get("/v1/requests/chatcmpl-known").json["id"] == "known"
    missing = World().get("/v1/requests/nope")
    assert (missing.status, missing.error["code"]) == (404, "request_not_found")


def test_a_record_that_cannot_be_read_now_says_when_to_come_back() -> None:
    missing = World().get("/v1/requests/away")
    assert (missing.status, missing.error["code"]) == (503, "record_unavailable")
    assert missing.error["type"] == "service_unavailable_error"
    assert missing.headers["retry-after"] == "1"
