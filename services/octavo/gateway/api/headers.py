"""Headers of requests and answers: names, reading, and the ones that explain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final

from octavo.gateway.routing import Route
from octavo.v1.errors import INVALID_VALUE, OctavoError
from octavo.v1.limits import MAX_FAIRNESS_KEY_CHARS, MAX_MS

Headers = list[tuple[bytes, bytes]]
Scope = MutableMapping[str, Any]

EXPOSED: Final = (
    "x-request-id",
    "request-id",
    "x-octavo-route",
    "x-octavo-cached-tokens",
    "x-octavo-ignored",
    "x-octavo-clamped",
    "idempotency-replayed",
    "server-timing",
    "retry-after",
)
"""What a page of another origin may read."""

MAX_LABEL_CHARS: Final = 128

STREAM: Final[Headers] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
"""Of every stream."""

REPLAYED: Final = (b"idempotency-replayed", b"true")
"""The answer belongs to an earlier request with the same key."""

_KEY: Final = re.compile(r"[!-~]{1,255}")

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")
"""Names come from the body: what is no name must not reach a header."""


def header(scope: Scope, name: bytes) -> str:
    """Returns the first value of a request header, empty when it is missing."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return ""


def is_strict(scope: Scope) -> bool:
    """Tells whether the client wants parameters refused rather than ignored."""
    query = scope.get("query_string", b"")
    return header(scope, b"x-octavo-strict") == "1" or b"strict=1" in query.split(b"&")


def read_timeout_ms(scope: Scope) -> int:
    """Returns how long the client will wait for an answer, zero when it does not say."""
    value = header(scope, b"x-stainless-read-timeout")
    try:
        seconds = float(value) if value else 0.0
    except ValueError:  # a hint that cannot be read is no hint
        return 0
    return int(seconds * 1000) if 0 < seconds * 1000 < MAX_MS else 0


def client_label(scope: Scope) -> str:
    """Returns the client's own id of the request: a label for people, never a key."""
    label = header(scope, b"x-request-id")[:MAX_LABEL_CHARS]
    return label if label.isascii() and label.isprintable() else ""


def fairness_key(scope: Scope) -> str:
    """Returns whose share of the engines the request uses, empty when no proxy says so.

    Raises:
        OctavoError: INVALID_VALUE for a header that is no key.
    """
    key = header(scope, b"x-octavo-fairness-key")
    if key and (len(key) > MAX_FAIRNESS_KEY_CHARS or not _KEY.fullmatch(key)):
        reason = f"must be 1 to {MAX_FAIRNESS_KEY_CHARS} visible ASCII characters"
        raise OctavoError(INVALID_VALUE, param="X-Octavo-Fairness-Key", reason=reason)
    return key


def idempotency_key(scope: Scope) -> str:
    """Returns the key under which the answer shall be given once, empty without one.

    Raises:
        OctavoError: INVALID_VALUE for a header that is no key.
    """
    if not any(name == b"idempotency-key" for name, _ in scope["headers"]):
        return ""
    key = header(scope, b"idempotency-key")
    if not _KEY.fullmatch(key):
        reason = "must be 1 to 255 visible ASCII characters"
        raise OctavoError(INVALID_VALUE, param="Idempotency-Key", reason=reason)
    return key


def id_headers(id: str) -> Headers:
    """Returns the request's id under the names that both families of SDKs read."""
    value = id.encode()
    return [(b"x-request-id", value), (b"request-id", value)]


def route_header(route: Route) -> tuple[bytes, bytes]:
    """Returns why the request went where it went."""
    value = (
        f"{route.engine}; hit={route.hit_tokens}/{route.prompt_tokens}; seconds={route.seconds:.4f}"
    )
    if route.runner_up:
        value += f"; runner-up={route.runner_up}"
        if route.runner_up_seconds is not None:
            value += f":{route.runner_up_seconds:.4f}"
    return (b"x-octavo-route", value.encode("ascii", "replace"))


def cached_header(tokens: int) -> tuple[bytes, bytes]:
    """Returns how many prompt tokens did not have to be computed."""
    return (b"x-octavo-cached-tokens", str(tokens).encode())


def timing_header(milliseconds: Mapping[str, float]) -> tuple[bytes, bytes]:
    """Returns durations that browsers draw."""
    value = ", ".join(f"{name};dur={ms:.1f}" for name, ms in milliseconds.items())
    return (b"server-timing", value.encode())


def ignored_header(ignored: Iterable[str]) -> tuple[bytes, bytes]:
    """Returns the names of parameters that had no effect."""
    safe = (_UNSAFE.sub("?", name) for name in ignored)
    return (b"x-octavo-ignored", ",".join(safe).encode())
