"""Certificates and keys of a cluster, made by the openssl program."""

from __future__ import annotations

from pathlib import Path

from tests.openssl import new_key, openssl

_CONFIG = """
[req]
distinguished_name = subject
x509_extensions = extensions
prompt = no
[subject]
O = {group}
CN = {name}
[extensions]
basicConstraints = critical, CA:TRUE
keyUsage = critical, digitalSignature, keyEncipherment, keyCertSign
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
{names}
"""


def self_signed(
    folder: Path, name: str, *, group: str = "octavo", hosts: tuple[str, ...] = ()
) -> tuple[Path, Path]:
    """Makes a certificate that is its own authority.

    Args:
        folder: where it goes.
        name: of the files, and the common name.
        group: the organisation, which is the group of a client of Kubernetes.
        hosts: names as `DNS:localhost` and addresses as `IP:127.0.0.1`.

    Returns:
        The files of certificate and key.
    """
    config, certificate, key = (folder / f"{name}.{end}" for end in ("conf", "crt", "key"))
    names = f"subjectAltName = {', '.join(hosts)}" if hosts else ""
    config.write_text(_CONFIG.format(group=group, name=name, names=names), encoding="utf-8")
    out = ("-config", str(config), "-out", str(certificate))
    openssl("req", "-x509", "-days", "3650", *new_key(key), *out)
    return certificate, key


def private_key(folder: Path, name: str) -> Path:
    """Makes a key that signs tokens."""
    key = folder / f"{name}.key"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
    return key
