import errno
import socket

import pytest

from octavo.gateway.listener import address_of, listen
from octavo.v1.errors import BAD_SETTING, PORT_IN_USE, OctavoError


def send_for_ever(served: socket.socket) -> None:
    while True:
        served.sendall(b"x" * 65536)


def test_a_peer_that_reads_nothing_is_gone_after_the_timeout() -> None:
    with (
        listen("127.0.0.1", 0, peer_timeout_s=0.4) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as served,
    ):
        assert served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        served.settimeout(10)
        with pytest.raises(TimeoutError) as caught:
            send_for_ever(served)
        assert caught.value.errno == errno.ETIMEDOUT, "the kernel's word, not our own timeout"


def test_a_taken_port_is_an_error_of_the_catalogue() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(OctavoError) as caught:
        listen("127.0.0.1", taken.getsockname()[1])
    assert caught.value.kind is PORT_IN_USE


@pytest.mark.parametrize(
    ("value", "address"),
    [("0.0.0.0:8081", ("0.0.0.0", 8081)), ("[::]:1", ("::", 1)), ("localhost:0", ("localhost", 0))],
)
def test_an_address_is_a_host_and_a_port(value: str, address: tuple[str, int]) -> None:
    assert address_of(value, key="status_listen") == address


@pytest.mark.parametrize("value", ["8081", ":8081", "host:", "host:x", "host:65536", "host:-1"])
def test_anything_else_is_refused_with_its_key(value: str) -> None:
    with pytest.raises(OctavoError) as caught:
        address_of(value, key="status_listen")
    assert caught.value.kind is BAD_SETTING
    assert "status_listen" in caught.value.message
