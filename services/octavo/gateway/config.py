"""The gateway's settings. Nothing else in the gateway reads arguments or the environment."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.runtime.settings import setting
from octavo.v1.limits import MAX_BODY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway process."""

    host: str = setting("127.0.0.1", "Address to listen on; loopback until keys are configured.")
    port: int = setting(
        8000, "Port to listen on; 0 takes a free one and logs it.", minimum=0, maximum=65535
    )
    engines: tuple[str, ...] = setting(
        ("127.0.0.1:50051",),
        "Addresses of the engines, comma-separated: HOST:PORT or unix:PATH.",
    )
    redis: str = setting(
        "redis://127.0.0.1:6379/0",
        "Redis or Valkey that keeps the request records; empty keeps the latest in memory only.",
        secret=True,
    )
    record_ttl_s: int = setting(
        86400, "How long a finished request's record is kept.", unit="s", minimum=1
    )
    allowed_host: tuple[str, ...] = setting(
        (), "Host headers accepted besides loopback names, comma-separated; * accepts all."
    )
    cors_origin: tuple[str, ...] = setting(
        (), "Origins of web pages that may call the API, comma-separated; * accepts all."
    )
    heartbeat_s: float = setting(
        5.0,
        "Silence after which a stream gets a comment line, so that idle timers do not end it.",
        unit="s",
        minimum=0.1,
        maximum=60,
    )
    max_body_bytes: int = setting(
        MAX_BODY_BYTES,
        "Largest HTTP body; a prompt of a million token ids is about 8 MB.",
        unit="bytes",
        minimum=1024,
    )
    drain_s: float = setting(
        30.0,
        "How long running requests may go on after SIGTERM before they are cut off.",
        unit="s",
        minimum=0,
        maximum=3600,
    )
    log_json: bool = setting(False, "Log lines as JSON objects instead of text.")
    log_level: str = setting(
        "info",
        "Least severe level that is logged.",
        choices=("debug", "info", "warning", "error"),
    )
