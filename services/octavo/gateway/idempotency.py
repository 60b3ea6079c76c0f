"""Idempotency keys, the deciding half: what is kept under a key and what a request does with it.

    (nothing) ──► running, try 1 ──► finished | too_large
                      │      ▲
        failed, left  ▼      │  try n + 1: same id, created and seeds
                     free ───┘      (also when the lease of try n has run out)

Each try has a lease of its own, so an owner that was thought dead cannot renew its successor's.
Knows no store and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

import msgspec

VERSION: Final = 1
KEY_PREFIX: Final = "octavo:once:"
_DIGEST_BYTES: Final = 16

PARAM: Final = "Idempotency-Key"
"""What errors name."""

State = Literal["running", "finished", "free", "too_large"]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Identity(msgspec.Struct, kw_only=True, frozen=True):
    """What makes every answer under one key the same."""

    id: _Digest
    """The first request's identifier."""
    created: _Count
    """Unix seconds."""
    seeds: tuple[_Count, ...]
    """One for each prompt."""


class Entry(msgspec.Struct, kw_only=True, frozen=True):
    """What is kept under a key. Names its version and key, so that a wrong value is noticed."""

    version: int = VERSION
    key: _Digest
    fingerprint: _Digest
    identity: Identity
    tries: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 1
    """The try that runs, or ran last."""
    state: State = "running"
    deltas: tuple[tuple[bytes, ...], ...] = ()
    """Of a finished answer: each prompt's deltas, serialised."""

    @property
    def name(self) -> str:
        """Where the store keeps it."""
        return KEY_PREFIX + self.key

    @property
    def lease(self) -> str:
        """Where the store keeps the lease of its try."""
        return f"{self.name}:{self.tries}"


class Step(Enum):
    """What a request does next."""

    TAKE = "take"
    """Acquire the lease of the next try and generate."""
    WAIT = "wait"
    """Another gateway generates."""
    REPLAY = "replay"
    CONFLICT = "conflict"
    """The key belongs to another body."""
    TOO_LARGE = "too_large"
    """The answer was given and not kept."""


def key_digest(tenant: str, key: str) -> str:
    """Returns the name under which a tenant's key is kept; no other tenant can form it."""
    scope = tenant.encode()
    return _digest(len(scope).to_bytes(4, "big") + scope + key.encode())


def fingerprint_of(endpoint: str, body: Mapping[str, Any], *, num_prompts: int) -> str:
    """Returns a digest of what was asked, whatever the order and spacing of the JSON."""
    canonical = msgspec.json.encode(body, order="deterministic")
    return _digest(f"{endpoint}:{num_prompts}:".encode() + canonical)


def decide(found: Entry | None, *, fingerprint: str, held: bool) -> Step:
    """Returns what a request with this fingerprint does.

    Args:
        found: what is kept under its key.
        fingerprint: of the request.
        held: whether the lease of the try that was found is alive.
    """
    if found is None or found.state == "free":
        return Step.TAKE
    if found.fingerprint != fingerprint:
        return Step.CONFLICT
    if found.state == "running":
        return Step.WAIT if held else Step.TAKE
    return Step.REPLAY if found.state == "finished" else Step.TOO_LARGE


def next_try(found: Entry | None, wanted: Entry) -> Entry:
    """Returns the entry of the try that follows what was found; a first one is as wanted.

    It continues the identity that was found, so that it gives the same answer; a key that was
    free may also be used for another body.
    """
    if found is None:
        return wanted
    same = found.fingerprint == wanted.fingerprint
    base = found if same else wanted
    tries = max(found.tries + 1, wanted.tries)
    return msgspec.structs.replace(base, state="running", tries=tries, deltas=())


def encode(entry: Entry) -> bytes:
    """Returns the value to store: a digest, then the entry."""
    data = _encode(entry)
    return blake2b(data, digest_size=_DIGEST_BYTES).digest() + data


def decode(raw: bytes, *, key: str) -> Entry | None:
    """Returns a stored entry; None for damaged or foreign values and those of another key."""
    data = raw[_DIGEST_BYTES:]
    if blake2b(data, digest_size=_DIGEST_BYTES).digest() != raw[:_DIGEST_BYTES]:
        return None
    try:
        entry = msgspec.msgpack.decode(data, type=Entry)
    except msgspec.DecodeError:
        return None
    if entry.version != VERSION or entry.key != key:
        return None
    if entry.state == "finished" and len(entry.deltas) != len(entry.identity.seeds):
        return None
    return entry


_encode = msgspec.msgpack.Encoder().encode


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
