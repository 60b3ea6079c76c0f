"""Errors as OpenAI's clients read them. Foreign errors are mapped here and nowhere else."""

from __future__ import annotations

import math

import msgspec
from starlette.exceptions import HTTPException

from octavo.gateway.api.headers import Headers
from octavo.v1.errors import METHOD_NOT_ALLOWED, ROUTE_NOT_FOUND, OctavoError


def error_object(error: OctavoError) -> dict[str, object]:
    """Returns the `error` object; `code` is the name that clients match on."""
    return {
        "message": error.message,
        "type": error.kind.type,
        "param": error.param or None,
        "code": error.kind.name,
        "octavo": {"code": error.kind.code, "help": error.help},
    }


def error_body(error: OctavoError) -> bytes:
    """Returns the whole body of an error answer."""
    return msgspec.json.encode({"error": error_object(error)})


def error_headers(error: OctavoError) -> Headers:
    """Returns the headers that an error answer adds."""
    headers: Headers = [(b"content-type", b"application/json")]
    if error.retry_after_ms:
        seconds = math.ceil(error.retry_after_ms / 1000)
        headers.append((b"retry-after", str(seconds).encode()))
    if error.kind is METHOD_NOT_ALLOWED:
        headers.append((b"allow", error.help.removeprefix("use ").encode()))
    if error.kind.status in (408, 413):
        # The rest of the body is not read, so the connection cannot be used again.
        headers.append((b"connection", b"close"))
    return headers


def from_starlette(error: HTTPException, *, path: str, method: str) -> OctavoError:
    """Returns what the router of the cold paths meant."""
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return method_not_allowed(path=path, method=method, allowed=allowed)
    return OctavoError(ROUTE_NOT_FOUND, path=path[:200])


def method_not_allowed(*, path: str, method: str, allowed: str) -> OctavoError:
    """Returns the error for a known path and a wrong method."""
    return OctavoError(METHOD_NOT_ALLOWED, path=path[:200], method=method, allowed=allowed)
