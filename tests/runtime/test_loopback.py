import pytest

from octavo.runtime.loopback import is_loopback, require_loopback
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
