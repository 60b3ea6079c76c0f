from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from tests.certificates import Authority, MountedSecret

from octavo.runtime.tls_folder import TlsFolder
from octavo.v1.errors import BAD_SETTING, OctavoError


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "one")


def opened(folder: Path, wall: Callable[[], float] = time.time) -> TlsFolder:
    return TlsFolder(str(folder), key="tls_dir", origin="engine", wall=wall)


def test_new_files_are_taken_and_unchanged_ones_are_the_same_object(
    authority: Authority, tmp_path: Path
) -> None:
    secret = MountedSecret(tmp_path / "tls").put(authority.issue("DNS:a"), authority)
    folder = opened(secret.folder)
    first = folder.read()
    assert folder.read() is first
    new = authority.issue("DNS:b")
    secret.put(new, authority)
    second = folder.read()
    assert (second.certificate, second.key) == (new.pem, new.key)
    assert second is not first
    assert new.key.decode() not in repr(second)


def test_files_that_are_no_use_leave_the_last_good_ones_and_are_told_once(
    authority: Authority, tmp_path: Path
) -> None:
    secret = MountedSecret(tmp_path / "tls").put(authority.issue("DNS:a"), authority)
    folder, registry = opened(secret.folder), CollectorRegistry()
    folder.observe(registry, "octavo_gateway_")
    good = folder.read()
    name = "octavo_gateway_certificate_expiration_timestamp_seconds"
    assert registry.get_sample_value(name) == good.ends
    one, other = authority.issue("DNS:a"), authority.issue("DNS:a")
    whole = {"tls.crt": one.pem, "tls.key": one.key, "ca.crt": authority.pem}
    for spoilt, reason in [
        ({"tls.key": other.key}, "tls.key is not the key of tls.crt"),
        ({"tls.crt": one.pem[:200]}, "tls.crt: a certificate in it cannot be read"),
        ({"tls.key": one.key[:60]}, "tls.crt, tls.key or ca.crt cannot be used: "),
        ({"ca.crt": b""}, "ca.crt: there is no certificate in it"),
    ]:
        secret.put_data(whole | spoilt)
        with capture_logs() as logs:
            assert folder.read() is good
            assert folder.read() is good
        [line] = logs
        assert (line["event"], line["log_level"]) == ("certificate_bad", "error")
        assert line["reason"].startswith(reason)
        assert registry.get_sample_value("octavo_gateway_certificate_bad") == 1
    secret.put_data(whole)
    assert folder.read().certificate == one.pem
    assert folder.problem() == ""
    assert registry.get_sample_value("octavo_gateway_certificate_bad") == 0


def test_a_file_that_is_missing_is_named(authority: Authority, tmp_path: Path) -> None:
    made = authority.issue("DNS:a")
    for name, data in (("tls.crt", made.pem), ("tls.key", made.key)):
        (tmp_path / name).write_bytes(data)
    registry = CollectorRegistry()
    folder = opened(tmp_path)
    folder.observe(registry, "octavo:")
    with pytest.raises(OctavoError) as caught:
        folder.read()
    assert caught.value.kind is BAD_SETTING
    assert caught.value.message == (
        f"tls_dir = {str(tmp_path)!r} (engine): ca.crt: No such file or directory"
    )
    assert registry.get_sample_value("octavo:certificate_expiration_timestamp_seconds") == 0


def test_a_certificate_that_has_ended_is_told_and_goes_on_being_shown(
    authority: Authority, tmp_path: Path
) -> None:
    now = [time.time()]
    secret = MountedSecret(tmp_path / "tls").put(authority.issue("DNS:a"), authority)
    folder = opened(secret.folder, lambda: now[0])
    first = folder.read()
    assert folder.problem() == ""
    now[0] = first.ends
    assert folder.read() is first
    assert folder.problem().startswith("the certificate ended at 20")
    secret.put(authority.issue("DNS:a", ends_in_s=2 * 3600.0), authority)
    assert folder.problem() == ""
