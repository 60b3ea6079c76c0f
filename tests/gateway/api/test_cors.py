from __future__ import annotations

import pytest

from octavo.gateway.api.cors import Origins
from octavo.v1.errors import OctavoError


def origins(host: str = "127.0.0.1", hosts: str = "", pages: str = "") -> Origins:
    return Origins(host=host, allowed_hosts=hosts.split(), cors_origins=pages.split())


def scope(*headers: tuple[str, str]) -> dict[str, object]:
    return {"headers": [(k.encode(), v.encode()) for k, v in headers]}


HOSTS = ["localhost", "localhost:8000", "127.0.0.1:1", "127.8.8.8", "[::1]:8000", "a.localhost"]
STRANGERS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example:80",
    "evil.example@localhost.x",
    "10.0.0.1",
    "0.0.0.0:8000",
    "[::1",
    "localhost\\.evil.example",
    "",
]


@pytest.mark.parametrize("host", HOSTS)
def test_loopback_names_are_ours(host: str) -> None:
    origins().check(scope(("host", host)))
    assert origins().check(scope(("host", host), ("origin", f"http://{host}")))


@pytest.mark.parametrize("host", STRANGERS)
def test_other_names_are_not(host: str) -> None:
    with pytest.raises(OctavoError, match="OCT-1011"):
        origins().check(scope(("host", host)))
    with pytest.raises(OctavoError, match="OCT-1011"):
        origins().check(scope(("host", "localhost"), ("origin", f"http://{host}")))


@pytest.mark.parametrize("origin", ["null", "file://", "chrome-extension://abc", "localhost"])
def test_origins_that_are_no_page_of_this_machine(origin: str) -> None:
    with pytest.raises(OctavoError, match="OCT-1011"):
        origins().check(scope(("host", "localhost"), ("origin", origin)))


def test_a_second_host_header_does_not_help() -> None:
    with pytest.raises(OctavoError):
        origins().check(scope(("host", "localhost"), ("host", "evil.example")))


def test_configured_names() -> None:
    made = origins(host="10.1.2.3", hosts="api.example", pages="https://App.example/")
    made.check(scope(("host", "10.1.2.3:8000")))
    made.check(scope(("host", "API.example"), ("origin", "https://app.example")))
    with pytest.raises(OctavoError):
        made.check(scope(("host", "api.example"), ("origin", "https://other.example")))


def test_wildcards() -> None:
    made = origins(host="0.0.0.0", hosts="*", pages="*")
    assert made.check(scope(("host", "x"), ("origin", "https://y.example")))
    with pytest.raises(OctavoError):
        origins(host="0.0.0.0").check(scope(("host", "0.0.0.0")))


def test_requests_without_host_or_origin_are_no_pages() -> None:
    assert origins().check(scope()) == b""
