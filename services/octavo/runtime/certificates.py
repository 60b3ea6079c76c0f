"""How files of certificates are called, and until when one is valid. Pure; no more of it is read.

The standard library tells the end only of a peer whose certificate it has accepted, so the few
fields before that are passed over by hand: RFC 5280 §4.1.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Final

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITIES: Final = "ca.crt"
"""As in a Secret of type kubernetes.io/tls."""

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"

_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_VALIDITY: Final = 3
"""Behind serial number, algorithm and issuer, where the version is not counted."""


def valid_until(pem: bytes) -> float:
    """Returns the Unix time at which the first of some certificates ends: a chain is worth no more.

    Args:
        pem: certificates, such as the `tls.crt` of a Secret; text around them does not matter.

    Raises:
        ValueError: there is none, or one cannot be read.
    """
    _, *parts = pem.decode("ascii", "replace").split(_BEGIN)
    if not parts:
        raise ValueError("there is no certificate in it")
    return min(_not_after(f"{_BEGIN}{part.partition(_END)[0]}{_END}") for part in parts)


def _not_after(pem: str) -> float:
    try:
        _, certificate = next(_elements(ssl.PEM_cert_to_DER_cert(pem)))
        _, signed = next(_elements(certificate))
        fields = (content for tag, content in _elements(signed) if tag != _VERSION)
        _, (tag, text) = _elements(next(islice(fields, _VALIDITY, None)))
        return _unix_s(text.decode("ascii"), has_century=tag != _UTC_TIME)
    except (ValueError, IndexError, StopIteration):
        raise ValueError("a certificate in it cannot be read") from None


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and content of the elements that lie side by side."""
    at = 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:  # the size of the size, then the size
            begin, at = at, at + (size & 0x7F)
            size = int.from_bytes(der[begin:at], "big")
        if at + size > len(der):
            raise ValueError("it is cut off")
        yield tag, der[at : at + size]
        at += size


def _unix_s(text: str, *, has_century: bool) -> float:
    if not has_century:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
