import pytest

from octavo.runtime.loopback import check_exposure, is_loopback, require_loopback
from octavo.v1.errors import BAD_SETTING, OctavoError


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1", "127.9.9.9:1", "localhost:50051", "[::1]:50051", "unix:/tmp/engine.sock"],
)
def test_what_stays_on_this_machine(address: str) -> None:
    assert is_loopback(address)
    require_loopback(address, key="listen", origin="engine")


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:1", "10.0.0.7:50051", "[::]:1", "engine-a:50051", "localhost.evil.example:1", ""],
)
def test_what_others_can_reach_or_be_is_refused(address: str) -> None:
    assert not is_loopback(address)
    with pytest.raises(OctavoError) as caught:
        require_loopback(address, key="listen", origin="engine")
    assert caught.value.kind is BAD_SETTING
    assert "listen" in caught.value.message
    assert "allows others" not in caught.value.message


def test_a_refusal_names_the_flag_that_would_allow_it() -> None:
    with pytest.raises(OctavoError, match="--plaintext allows others"):
        require_loopback("0.0.0.0:1", key="listen", origin="engine", unless="--plaintext")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_is_not_exposed(host: str) -> None:
    check_exposure(host, origin="default")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.2", "example.org"])
def test_host_that_others_reach_is_refused_with_the_way_to_allow_it(host: str) -> None:
    with pytest.raises(OctavoError, match=r"no keys yet; --no-auth allows it") as raised:
        check_exposure(host, origin="flag --host")
    assert raised.value.kind is BAD_SETTING
