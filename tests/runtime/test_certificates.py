from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from tests.certificates import Authority

from octavo.runtime.certificates import valid_until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "one")


@pytest.mark.parametrize("ends_in_s", [60, -86400, 40 * 365 * 86400])
def test_the_end_is_what_is_written_in_the_certificate(
    authority: Authority, ends_in_s: float
) -> None:
    """From 2050 on it is written with the century."""
    made = authority.issue("DNS:a", ends_in_s=ends_in_s)
    assert valid_until(made.pem) == pytest.approx(time.time() + ends_in_s, abs=30)


def test_the_standard_library_reads_the_same(authority: Authority, tmp_path: Path) -> None:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    (read,) = context.get_ca_certs()
    assert valid_until(authority.pem) == ssl.cert_time_to_seconds(str(read["notAfter"]))


def test_a_chain_ends_with_the_first_of_its_certificates(authority: Authority) -> None:
    soon, late = authority.issue("DNS:a", ends_in_s=60), authority.issue("DNS:a", ends_in_s=3000)
    text = b"subject=CN = a\n"
    assert valid_until(late.pem + text + soon.pem) == valid_until(soon.pem)


def test_what_is_no_certificate_is_said_to_be_none(authority: Authority) -> None:
    for nothing in (b"", b"\xff\x00", b"-----BEGIN PRIVATE KEY-----\n"):
        with pytest.raises(ValueError, match="there is no certificate in it"):
            valid_until(nothing)
    whole = authority.pem
    half = whole[: len(whole) // 2] + b"\n-----END CERTIFICATE-----\n"
    odd = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    for broken in (half, odd, whole[:60]):
        with pytest.raises(ValueError, match="a certificate in it cannot be read"):
            valid_until(broken)
