from __future__ import annotations

import pytest

from octavo.operator.cluster import Key
from octavo.operator.config import OperatorConfig
from octavo.runtime.settings import load
from octavo.v1.errors import OctavoError


def test_all_namespaces_are_one_scope() -> None:
    assert OperatorConfig().scopes() == (None,)
    assert OperatorConfig(namespaces=("a", "b")).scopes() == ("a", "b")


def test_installation_has_what_the_settings_say() -> None:
    config = load(
        OperatorConfig,
        flags={
            "engine_image_cpu": "own/engine:1",
            "gateway_service": "octavo/gateway",
            "gateway_labels": "app=gateway,tier=",
            "monitoring_namespaces": "watch",
            "gateway_url": "http://gateway.octavo.svc/v1",
            "gateway_identity": "spiffe://td/ns/a/sa/b",
            "pod_monitor_labels": "release=prometheus",
            "pod_monitor_interval": "30s",
        },
    ).value
    installation = config.installation()
    assert installation.engine_images == {"cpu": "own/engine:1", "cuda": "octavo-engine:cuda"}
    assert installation.gateway_namespace == "octavo"
    assert installation.gateway_labels == {"app": "gateway", "tier": ""}
    assert installation.monitoring_namespaces == ("watch",)
    assert installation.gateway_identity == "spiffe://td/ns/a/sa/b"
    assert installation.url == "http://gateway.octavo.svc/v1"
    assert installation.pod_monitors
    assert installation.pod_monitor_labels == {"release": "prometheus"}
    assert installation.pod_monitor_interval == "30s"
    assert config.gateway_key() == Key("octavo", "gateway")


def test_without_gateway_and_lease_there_are_no_keys() -> None:
    config = OperatorConfig()
    assert config.gateway_key() is None
    assert config.lease_key() is None
    assert config.installation().gateway_namespace == ""


@pytest.mark.parametrize("value", ["gateway", "/gateway", "octavo/", "a/b/c"])
def test_a_service_without_namespace_stops_the_start(value: str) -> None:
    with pytest.raises(OctavoError, match=r"gateway_service.*NAMESPACE/NAME"):
        OperatorConfig(gateway_service=value).installation()


@pytest.mark.parametrize("name", ["gateway_labels", "pod_monitor_labels"])
def test_labels_without_value_stop_the_start(name: str) -> None:
    config = load(OperatorConfig, flags={name: "app"}).value
    with pytest.raises(OctavoError, match=rf"{name}.*KEY=VALUE"):
        config.installation()


@pytest.mark.parametrize("value", ["15", "s", "1h", "-1s", "15s "])
def test_an_interval_that_prometheus_would_refuse_stops_the_start(value: str) -> None:
    with pytest.raises(OctavoError, match=r"pod_monitor_interval.*no time"):
        OperatorConfig(pod_monitor_interval=value).installation()


def test_a_gateway_without_a_name_stops_the_start() -> None:
    with pytest.raises(
        OctavoError, match=r"gateway_identity.*engines would take calls from nobody"
    ):
        OperatorConfig(gateway_identity="").installation()
