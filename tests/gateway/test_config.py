import pytest

from octavo.gateway.config import GatewayConfig
from octavo.runtime.settings import MASK, doc_of, load, names
from octavo.v1.errors import OctavoError


def test_defaults_serve_this_machine_only() -> None:
    config = GatewayConfig()
    assert config.host == "127.0.0.1"
    assert config.engines == ("127.0.0.1:50051",)
    assert config.allowed_host == config.cors_origin == ()


def test_engines_come_from_one_variable() -> None:
    loaded = load(GatewayConfig, environ={"OCTAVO_ENGINES": "a:1,b:2"})
    assert loaded.value.engines == ("a:1", "b:2")


def test_the_password_of_redis_is_not_shown() -> None:
    loaded = load(GatewayConfig, flags={"redis": "redis://:secret@host"})
    assert loaded.shown("redis") == MASK


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", "70000"), ("heartbeat_s", "0"), ("log_level", "chatty"), ("drain_s", "-1")],
)
def test_senseless_values_stop_the_start(name: str, value: str) -> None:
    with pytest.raises(OctavoError) as caught:
        load(GatewayConfig, flags={name: value})
    assert name in str(caught.value)


def test_every_setting_is_explained() -> None:
    for name in names(GatewayConfig):
        assert len(doc_of(GatewayConfig, name).help) > 10
