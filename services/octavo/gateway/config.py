"""The gateway's settings. Nothing else in the gateway reads arguments or the environment."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.runtime.settings import setting
from octavo.v1.limits import MAX_BODY_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway process."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on; one that others reach needs --no-auth. :: is all addresses, IPv4 "
        "and IPv6.",
    )
    no_auth: bool = setting(
        False,
        "Lets --host be an address that others reach. There are no API keys yet: whoever reaches "
        "it may use it.",
    )
    port: int = setting(
        8000, "Port to listen on; 0 takes a free one and logs it.", minimum=0, maximum=65535
    )
    status_listen: str = setting(
        "",
        "Address of a listener of its own for /healthz, /readyz, /metrics and /state, which tells "
        "how engines and services are; empty: none.",
    )
    discover: str = setting(
        "static",
        "How engines are found: those of --engines (static), or the pods of all InferenceServices "
        "(kubernetes), as the service account or KUBECONFIG may see them.",
        choices=("static", "kubernetes"),
    )
    engines: tuple[str, ...] = setting(
        ("127.0.0.1:50051",),
        "Addresses of the engines, comma-separated: HOST:PORT or unix:PATH. Not used with "
        "--discover kubernetes.",
    )
    engine_tls_dir: str = setting(
        "",
        "Folder with tls.crt, tls.key and ca.crt for engines that take mTLS only: those of "
        "InferenceServices with spec.engine.tls, and all of --engines that have a port. Files that "
        "are replaced count from the next connection on.",
    )
    namespaces: tuple[str, ...] = setting(
        (), "Namespaces whose InferenceServices are served, comma-separated; empty takes all."
    )
    bare_names: tuple[str, ...] = setting(
        ("*",),
        "Namespaces whose InferenceServices may be asked for by a served name alone, "
        "comma-separated; * is all, empty is none, so that requests name NAMESPACE/NAME. Of "
        "several that claim a name the oldest has it, until it is deleted.",
    )
    hold_s: float = setting(
        300.0,
        "How long a request for an InferenceService without an engine waits for one.",
        unit="s",
        minimum=0,
        maximum=3600,
    )
    max_held: int = setting(
        256, "Requests that may wait so; beyond them they get 429 with Retry-After.", minimum=0
    )
    redis: str = setting(
        "redis://127.0.0.1:6379/0",
        "Redis or Valkey that keeps the request records; empty keeps the latest in memory only.",
        secret=True,
    )
    record_ttl_s: int = setting(
        86400, "How long a finished request's record is kept.", unit="s", minimum=1
    )
    idempotency_ttl_s: int = setting(
        600,
        "How long an answer to a request with an Idempotency-Key is kept, its text included, in "
        "memory and in Redis, so that it can be given again.",
        unit="s",
        minimum=30,
        maximum=86400,
    )
    idempotency_grace_s: float = setting(
        30.0,
        "How long a generation with an Idempotency-Key goes on when its client has left.",
        unit="s",
        minimum=1,
        maximum=600,
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        "Host headers accepted besides loopback names, comma-separated; * accepts all, which is "
        "the default with --discover kubernetes, where no browser is on the same machine.",
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
    max_requests: int = setting(
        4096, "Generations open at once; beyond them requests get 429 with Retry-After.", minimum=1
    )
    max_body_bytes_total: int = setting(
        256 * 1024 * 1024,
        "Bytes of all bodies that are being received; beyond them the largest one gets 429.",
        unit="bytes",
        minimum=1024,
    )
    memory_limit_bytes: int = setting(
        0,
        "Memory that the process may take, for refusing requests before it ends; 0 takes the "
        "cgroup's limit, and if there is none, the process never refuses for memory.",
        unit="bytes",
        minimum=0,
    )
    resume: str = setting(
        "exact",
        "Which engines go on with an answer whose engine is lost: those that give the same tokens "
        "(exact), others too, which the usage then says (any), or none (never).",
        choices=("exact", "any", "never"),
    )
    resume_wait_s: float = setting(
        8.0,
        "How long a request whose engine is lost waits for another one.",
        unit="s",
        minimum=0,
        maximum=600,
    )
    leave_s: float = setting(
        0.0,
        "How long new requests are still served after SIGTERM, each on its last connection: until "
        "all who balance the load know that this gateway goes.",
        unit="s",
        minimum=0,
        maximum=600,
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
