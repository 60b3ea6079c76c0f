"""A folder with certificate, key and authorities, as a Secret of type kubernetes.io/tls is mounted.

Whoever opens a connection reads it anew; files that have not changed cost three calls of stat. What
is newly there counts when it is whole and fits together, else the last good files go on.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Gauge

from octavo.runtime.certificates import AUTHORITIES, CERTIFICATE, KEY, valid_until
from octavo.v1.errors import BAD_SETTING, OctavoError

log = structlog.get_logger(__name__)

_NO_PASSWORD: Final = ""
"""Makes a key that needs one an error; without it OpenSSL would ask the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What one side shows, and whom it trusts; all in PEM. Equal files are one object."""

    certificate: bytes
    """With the certificates between it and its authority."""
    key: bytes = field(repr=False)
    authorities: bytes
    """Whoever signed the other side's certificate is one of them."""
    ends: float
    """Unix time at which the certificate ends."""


class TlsFolder:
    """The identity in a folder. May be used by several threads.

    Args:
        folder: holds the files.
        key: the setting that names it.
        origin: whose setting it is.
        wall: Unix time.
    """

    def __init__(self, folder: str, *, key: str, origin: str, wall: Callable[[], float]) -> None:
        self._folder = Path(folder)
        self._wall = wall
        self._key = key
        self._origin = origin
        self._lock = threading.Lock()
        self._identity: Identity | None = None
        self._taken: object = None
        """What the files were like when the identity was read."""
        self._problem = ""

    def observe(self, registry: CollectorRegistry, prefix: str) -> None:
        """Adds gauges, whose names begin with `prefix`, that look at the folder when scraped."""
        ends = Gauge(
            f"{prefix}certificate_expiration_timestamp_seconds",
            "Unix time at which the certificate in use ends; 0: there is none.",
            registry=registry,
        )
        ends.set_function(self._ends)
        bad = Gauge(
            f"{prefix}certificate_bad",
            "1 while the newest certificate cannot be used.",
            registry=registry,
        )
        bad.set_function(lambda: bool(self.problem()))

    def problem(self) -> str:
        """Returns why the newest files are not used, or are of no use; empty when all is well."""
        with suppress(OctavoError):
            self.read()
        return self._problem

    def read(self) -> Identity:
        """Returns the newest identity that is whole; the same object while nothing has changed.

        Raises:
            OctavoError: BAD_SETTING while there never was one.
        """
        with self._lock:
            self._note(self._take())
            if self._identity is None:
                where, reason = str(self._folder), self._problem
                raise OctavoError(
                    BAD_SETTING, key=self._key, value=where, origin=self._origin, reason=reason
                )
            return self._identity

    def _ends(self) -> float:
        try:
            return self.read().ends
        except OctavoError:
            return 0.0

    def _take(self) -> str:
        """Takes what is new; returns why it is not used, or of no use."""
        try:
            before = self._state()
            if before != self._taken:
                identity = self._load()
                if self._state() != before:
                    return "the files are being changed"
                self._identity, self._taken = identity, before
                log.info("certificate_read", folder=str(self._folder), ends=_date(identity.ends))
        except (OSError, ValueError) as error:  # of ssl, too
            return _reason(error)
        if self._identity is not None and self._identity.ends <= self._wall():
            return f"the certificate ended at {_date(self._identity.ends)}"
        return ""

    def _state(self) -> object:
        found = [(self._folder / name).stat() for name in (CERTIFICATE, KEY, AUTHORITIES)]
        return [(f.st_dev, f.st_ino, f.st_mtime_ns, f.st_size) for f in found]

    def _load(self) -> Identity:
        certificate, key, authorities = (self._folder / n for n in (CERTIFICATE, KEY, AUTHORITIES))
        chain, trusted = certificate.read_bytes(), authorities.read_bytes()
        ends, _ = _ends(CERTIFICATE, chain), _ends(AUTHORITIES, trusted)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, _NO_PASSWORD)
        context.load_verify_locations(cadata=trusted.decode("ascii", "ignore"))
        return Identity(certificate=chain, key=key.read_bytes(), authorities=trusted, ends=ends)

    def _note(self, problem: str) -> None:
        """Tells a problem once."""
        if problem and problem != self._problem:
            log.error("certificate_bad", folder=str(self._folder), reason=problem)
        self._problem = problem


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat()


def _ends(name: str, pem: bytes) -> float:
    try:
        return valid_until(pem)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"{KEY} is not the key of {CERTIFICATE}"
        return f"{CERTIFICATE}, {KEY} or {AUTHORITIES} cannot be used: {error.reason or error}"
    if isinstance(error, OSError):
        return f"{Path(str(error.filename or '')).name}: {error.strerror}"
    return str(error)
