"""Hashes of values: equal for equal content, whatever the order of its keys."""

from __future__ import annotations

import hashlib

import msgspec


def fingerprint(value: object) -> str:
    """Returns 16 hexadecimal digits that stand for a value made of JSON's types."""
    text = msgspec.json.encode(value, order="deterministic")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
