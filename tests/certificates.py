"""Authorities and the certificates that they sign, made by the openssl program; and Secrets."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.openssl import new_key, openssl

GATEWAY = "spiffe://cluster.local/ns/octavo/sa/octavo-gateway"
HOUR_S = 3600.0

_CONFIG = """
[req]
distinguished_name = subject
x509_extensions = authority
prompt = no
[subject]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
[ca]
default_ca = own
[own]
database = {folder}/index
serial = {folder}/serial
new_certs_dir = {folder}
unique_subject = no
default_md = sha256
policy = any
[any]
commonName = supplied
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate and its key, in PEM."""

    pem: bytes
    key: bytes


class Authority:
    """An issuer of its own.

    Args:
        folder: for its files.
        name: its common name, and that of its folder.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self._count = itertools.count()
        config = _CONFIG.format(name=name, folder=self.folder)
        self._path("config").write_text(config, encoding="utf-8")
        self._path("index").touch()
        self._path("serial").write_text("01\n", encoding="utf-8")
        self._openssl(
            "req", "-x509", "-days", "30", *new_key(self._path("key")),
            "-out", str(self._path("crt")),
        )  # fmt: skip
        self.pem = self._path("crt").read_bytes()

    def issue(self, *names: str, ends_in_s: float = HOUR_S) -> Certificate:
        """Signs a certificate for both sides of a connection.

        Args:
            names: as `DNS:localhost`, `IP:127.0.0.1` or `URI:spiffe://...`.
            ends_in_s: may be below zero; it began an hour before.
        """
        leaf = f"leaf-{next(self._count)}"
        request, key, certificate, extensions = map(
            self._path, (f"{leaf}.csr", f"{leaf}.key", f"{leaf}.crt", f"{leaf}.ext")
        )
        extensions.write_text(
            f"subjectAltName = {', '.join(names)}\nextendedKeyUsage = serverAuth, clientAuth\n",
            encoding="utf-8",
        )
        self._openssl("req", *new_key(key), "-subj", f"/CN={leaf}", "-out", str(request))
        ends = datetime.now(UTC) + timedelta(seconds=ends_in_s)
        begins = min(ends, datetime.now(UTC)) - timedelta(seconds=HOUR_S)
        self._openssl(
            "ca", "-batch", "-notext", "-in", str(request), "-out", str(certificate),
            "-cert", str(self._path("crt")), "-keyfile", str(self._path("key")),
            "-extfile", str(extensions),
            "-startdate", f"{begins:%Y%m%d%H%M%SZ}", "-enddate", f"{ends:%Y%m%d%H%M%SZ}",
        )  # fmt: skip
        return Certificate(pem=certificate.read_bytes(), key=key.read_bytes())

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _openssl(self, command: str, *arguments: str) -> None:
        openssl(command, "-config", str(self._path("config")), *arguments)


class MountedSecret:
    """A folder with the data of a Secret, which change as kubelet changes them: all at once.

    Args:
        folder: does not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._count = itertools.count()

    def put(self, certificate: Certificate, *authorities: Authority) -> MountedSecret:
        """Has these data from now on."""
        trusted = b"".join(authority.pem for authority in authorities)
        self.put_data({"tls.crt": certificate.pem, "tls.key": certificate.key, "ca.crt": trusted})
        return self

    def put_data(self, data: dict[str, bytes]) -> None:
        """Has any data from now on."""
        version = self.folder / f"..{next(self._count)}"
        version.mkdir()
        for name, content in data.items():
            (version / name).write_bytes(content)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(Path("..data") / name)
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").replace(self.folder / "..data")
