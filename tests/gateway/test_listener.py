import errno
import socket

import pytest
from tests.ports import loopbacks, reached_by

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


def test_the_address_that_is_all_addresses_is_so_in_clusters_of_either_family() -> None:
    with listen("::", 0) as listener:
        assert reached_by(listener.getsockname()[1]) == loopbacks()
    with listen("0.0.0.0", 0) as listener:
        assert reached_by(listener.getsockname()[1]) == ["127.0.0.1"]


def test_a_kernel_without_ipv6_is_listened_on_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen("::", 0) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
