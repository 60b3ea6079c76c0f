import pytest

from octavo.runtime.listen_address import listen_address
from octavo.v1.errors import BAD_SETTING, OctavoError


@pytest.mark.parametrize(
    ("value", "address"),
    [("0.0.0.0:8081", ("0.0.0.0", 8081)), ("[::]:1", ("::", 1)), ("localhost:0", ("localhost", 0))],
)
def test_an_address_is_a_host_and_a_port(value: str, address: tuple[str, int]) -> None:
    assert listen_address(value, key="status_listen", origin="test") == address


@pytest.mark.parametrize("value", ["8081", ":8081", "host:", "host:x", "host:65536", "host:-1"])
def test_anything_else_is_refused_with_its_key(value: str) -> None:
    with pytest.raises(OctavoError) as caught:
        listen_address(value, key="status_listen", origin="test")
    assert caught.value.kind is BAD_SETTING
    assert "status_listen" in caught.value.message


def test_the_host_may_be_all_where_that_is_allowed() -> None:
    address = listen_address(":8081", key="status_listen", origin="test", may_lack_host=True)
    assert address == ("", 8081)
    with pytest.raises(OctavoError):
        listen_address("8081", key="status_listen", origin="test", may_lack_host=True)
