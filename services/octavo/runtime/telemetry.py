"""OpenTelemetry, set up by the standard OTEL_* variables and by nothing else.

Without OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_TRACES_EXPORTER
nothing is imported, started or sent: `tracer` then makes spans that cost next to nothing. Sampler,
headers, certificates and batch sizes are read by the SDK itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from opentelemetry import trace

from octavo.runtime.settings import MASK
from octavo.v1.errors import BAD_SETTING, OctavoError

_SWITCHES = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_HEADER = re.compile(r"[\w.-]+[ \t]*=[^\";\\]*", re.ASCII)
_SENDABLE = re.compile(r"[ -~]*", re.ASCII)


def is_on(environ: Mapping[str, str]) -> bool:
    """Tells whether the variables ask for traces."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(environ.get(name) for name in _SWITCHES)


def configure(service: str, environ: Mapping[str, str]) -> Callable[[], None]:
    """Starts exporting when the variables ask for it; called once, before the first span.

    Args:
        service: the default of service.name; OTEL_SERVICE_NAME has precedence.
        environ: the process environment.

    Returns:
        What sends the last spans and ends the exporter, at the end of the process.

    Raises:
        OctavoError: BAD_SETTING for an exporter or protocol that is not built in, and for headers
            that cannot be sent.
    """
    if not is_on(environ):
        return _nothing
    _check(environ, "OTEL_TRACES_EXPORTER", "otlp")
    _check(environ, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    _check(environ, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    _check_headers(environ)
    # Imported only when used: the exporter and its thread are not for everyone.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = environ.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def tracer() -> trace.Tracer:
    """Returns the tracer of this process."""
    return trace.get_tracer("octavo")


def _check(environ: Mapping[str, str], name: str, only: str) -> None:
    value = environ.get(name, only)
    if value != only:
        raise OctavoError(
            BAD_SETTING, key=name, value=value, origin=f"env {name}", reason=f"must be {only}"
        )


def _check_headers(environ: Mapping[str, str]) -> None:
    """Refuses what the SDK would write into the log instead of sending it: headers hold secrets."""
    for name in _HEADERS:
        for header in map(str.strip, environ.get(name, "").split(",")):
            if header and not (
                _HEADER.fullmatch(header) and _SENDABLE.fullmatch(unquote(header).strip())
            ):
                raise OctavoError(
                    BAD_SETTING,
                    key=name,
                    value=MASK,
                    origin=f"env {name}",
                    reason="must be NAME=VALUE,NAME=VALUE, the values encoded as in URLs",
                )


def _nothing() -> None:
    """There is nothing to end."""
