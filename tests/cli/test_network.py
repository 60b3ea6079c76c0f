from __future__ import annotations

import asyncio
import socket

import pytest

from octavo.cli.network import (
    check_port,
    check_redis,
    free_ports,
    http_get,
    reachable_host,
    url_of,
)
from octavo.runtime.env import SystemEnv
from octavo.v1.errors import BAD_SETTING, PORT_IN_USE, STORE_UNREACHABLE, OctavoError


def test_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OctavoError) as raised:
            check_port("127.0.0.1", port)
    assert raised.value.kind is PORT_IN_USE
    assert raised.value.message == f"port {port} on 127.0.0.1 is taken"
    assert raised.value.kind.exit_code == 3


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_host_of_another_machine_is_a_bad_setting(host: str) -> None:
    with pytest.raises(OctavoError) as raised:
        check_port(host, 8000)
    assert raised.value.kind is BAD_SETTING


def test_free_ports_are_distinct_and_free() -> None:
    ports = free_ports(8, SystemEnv().rng("test"))
    assert len(set(ports)) == 8
    for port in ports:
        check_port("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("example.org", "http://example.org:8000"),
    ],
)
def test_url_reaches_what_listens_on_a_host(host: str, url: str) -> None:
    assert url_of(host, 8000) == url
    assert reachable_host(host) in url


def test_nothing_listening_is_status_zero() -> None:
    port = free_ports(1, SystemEnv().rng("test"))[0]
    assert asyncio.run(http_get("127.0.0.1", port, "/readyz")) == (0, b"")


@pytest.mark.parametrize("url", ["redis://user:geheim@127.0.0.1:{port}/0", "unix:///no/such.sock"])
def test_store_that_is_away_is_named_without_its_password(url: str) -> None:
    port = free_ports(1, SystemEnv().rng("test"))[0]
    with pytest.raises(OctavoError) as raised:
        asyncio.run(check_redis(url.format(port=port), origin="flag --redis"))
    assert raised.value.kind is STORE_UNREACHABLE
    assert "geheim" not in raised.value.message


def test_store_that_listens_is_accepted() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        url = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        asyncio.run(check_redis(url, origin="flag --redis"))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("geheim@localhost:6379", "must begin with redis://"),
        ("http://:geheim@localhost", "must begin with redis://"),
        ("redis://:geheim@", "names no host"),
        ("unix://", "names no socket"),
        ("redis://:geheim/@localhost:6379", "not a URL"),
        ("redis://:geheim@localhost:99999", "not a URL"),
        ("redis://:geheim@[::1", "not a URL"),
        ("redis://geheim/1@localhost", "in a password"),
    ],
)
def test_what_is_no_url_of_a_store_is_a_bad_setting_without_its_password(
    url: str, reason: str
) -> None:
    with pytest.raises(OctavoError) as raised:
        asyncio.run(check_redis(url, origin="flag --redis"))
    assert raised.value.kind is BAD_SETTING
    assert f"redis = '********' (flag --redis): {reason}" in raised.value.message
    assert "geheim" not in raised.value.message
