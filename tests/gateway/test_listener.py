import errno
import socket

import pytest

from octavo.gateway.listener import listen
from octavo.v1.errors import PORT_IN_USE, OctavoError


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
