import subprocess
import sys
from collections.abc import Mapping

import pytest

from octavo.runtime import telemetry
from octavo.v1.errors import BAD_SETTING, OctavoError

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

SEND_ONE = """
import os, sys, threading
from octavo.runtime import telemetry
end = telemetry.configure("svc", os.environ)
with telemetry.tracer().start_as_current_span("chat tiny"):
    pass
end()
print(threading.active_count(), "opentelemetry.sdk.trace" in sys.modules)
"""


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({ENDPOINT: "http://collector:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4317"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://collector:4317"}, False),
        ({"OTEL_SDK_DISABLED": "true", ENDPOINT: "http://collector:4317"}, False),
        ({ENDPOINT: ""}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
    ],
)
def test_only_the_standard_variables_switch_it_on(environ: Mapping[str, str], on: bool) -> None:
    assert telemetry.is_on(environ) is on


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "jaeger"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
    ],
)
def test_what_is_not_built_in_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(OctavoError) as caught:
        telemetry.configure("svc", {ENDPOINT: "http://collector:4317", name: value})
    assert caught.value.kind is BAD_SETTING


@pytest.mark.parametrize(
    "value",
    [
        "geheim",
        "a=geheim;b",
        'a="geheim"',
        "a=ge%0aheim%20geheim",
        "a=1,b=geheim\n\nc=2",
        "a b=geheim",
    ],
)
@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"]
)
def test_headers_that_cannot_be_sent_stop_the_start_and_are_not_shown(
    name: str, value: str
) -> None:
    with pytest.raises(OctavoError, match=name) as caught:
        telemetry.configure("svc", {ENDPOINT: "http://collector:4317", name: value})
    assert caught.value.kind is BAD_SETTING
    assert "geheim" not in str(caught.value)


def run(environ: Mapping[str, str]) -> str:
    code = [sys.executable, "-c", SEND_ONE]
    env = {"PYTHONPATH": ":".join(sys.path), **environ}
    done = subprocess.run(code, env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_when_off_there_is_no_thread_and_no_sdk() -> None:
    assert run({}) == "1 False"


def test_spans_reach_a_collector() -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

    received: list[messages.ExportTraceServiceRequest] = []

    class Collector(service.TraceServiceServicer):
        def Export(  # noqa: N802
            self, request: messages.ExportTraceServiceRequest, context: object
        ) -> messages.ExportTraceServiceResponse:
            received.append(request)
            return messages.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    service.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        Collector(), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        run({ENDPOINT: f"http://127.0.0.1:{port}"})
    finally:
        server.stop(None).wait()
    [request] = received
    [spans] = request.resource_spans
    names = {a.key: a.value.string_value for a in spans.resource.attributes}
    assert names["service.name"] == "svc"
    assert [s.name for s in spans.scope_spans[0].spans] == ["chat tiny"]
