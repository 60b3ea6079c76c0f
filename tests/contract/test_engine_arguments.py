"""What the operator writes into pods is what engine and loader read: they share no code."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.building import service
from tests.operator.specs import PREFIXES, URIS, specs

from octavo.engine.config import EngineConfig
from octavo.engine.pin_file import read_pins
from octavo.engine.process import EXIT_STUCK
from octavo.loader import model_uri as loader_uri
from octavo.loader.config import LoaderConfig
from octavo.operator import (
    desired_engine,
    desired_loader,
    engine_cache,
    failures,
    names,
    schema_cache,
)
from octavo.operator.kinds import Manifest
from octavo.operator.options import OPTIONS, OURS
from octavo.operator.replicas import DEFAULT_PLACES
from octavo.runtime.arguments import parse
from octavo.runtime.settings import doc_of, flag_of
from octavo.runtime.settings import names as names_of
from octavo.v1 import limits


def unescaped(arguments: list[str]) -> list[str]:
    """Returns what a process gets: kubelet makes one dollar of two."""
    return [argument.replace("$$", "$") for argument in arguments]


def engine_config(**spec: Any) -> EngineConfig:
    template = desired_engine.pod_template(service(**spec), "image", "", "spiffe://a/b")
    container: Manifest = template["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "octavo.engine"]
    return parse(EngineConfig, unescaped(container["args"]), {}, "engine").value


@settings(max_examples=40)
@given(specs(uris=URIS))
def test_the_engine_reads_every_list_of_arguments(spec: dict[str, Any]) -> None:
    config = engine_config(**spec)
    one = service(**spec)
    assert config.model == desired_engine.model_path(one.spec.model)
    assert config.served_name == one.served_names
    assert config.plaintext is (one.spec.engine.tls is None)
    assert bool(config.tls_dir) is bool(config.tls_client) is not config.plaintext
    assert config.listen == f"0.0.0.0:{names.GRPC_PORT}"
    assert config.metrics_listen == f"0.0.0.0:{names.STATUS_PORT}"
    assert config.drain_s == one.spec.rollout.drain_seconds
    assert bool(config.host_cache_bytes) == (one.spec.cache.host is not None)
    assert bool(config.disk_cache_dir) == (one.spec.cache.disk is not None)
    assert bool(config.pin_prefix) == bool(one.spec.cache.pinned_prefixes)


def test_the_engine_s_tiers_are_where_the_pod_has_them() -> None:
    cache = {"host": "4Gi", "disk": {"size": "10Gi"}, "pinnedPrefixes": [{"text": "x"}]}
    config = engine_config(cache=cache)
    assert config.host_cache_bytes == 4 * 2**30
    assert (config.disk_cache_dir, config.disk_cache_bytes) == ("/var/cache/octavo", 9 * 2**30)
    template = desired_engine.pod_template(service(cache=cache), "image", "")
    mounts = {m["mountPath"] for m in template["spec"]["containers"][0]["volumeMounts"]}
    folder, _, file = config.pin_prefix.rpartition("/")
    assert {config.disk_cache_dir, folder} <= mounts
    assert list(engine_cache.pins(service(cache=cache))["data"]) == [file]


@settings(max_examples=40)
@given(st.lists(PREFIXES, min_size=1, max_size=4), st.text(min_size=1))
def test_the_engine_reads_every_file_of_pins(prefixes: list[dict[str, Any]], odd: str) -> None:
    given_prefixes = [*prefixes, {"text": odd, "cacheSalt": odd[:256]}]
    made = engine_cache.pins(service(cache={"pinnedPrefixes": given_prefixes}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pins"
        path.write_bytes(made["data"][engine_cache.PINS_FILE].encode())
        found = [pin for _, pin in read_pins(path)]
    for pin, prefix in zip(found, given_prefixes, strict=True):
        assert pin.text == prefix.get("text", "")
        said = [{"role": m.role, "content": m.content} for m in pin.messages.messages]
        assert said == prefix.get("messages", [])
        assert pin.cache_salt == prefix.get("cacheSalt", "")
        assert pin.ttl_ms == 1000 * prefix.get("ttlSeconds", 0)


def test_pins_have_the_engine_s_bounds() -> None:
    assert schema_cache.ROLES == limits.CHAT_ROLES
    assert schema_cache.MAX_SALT == limits.MAX_SALT_CHARS
    assert schema_cache.MAX_TTL_S == limits.MAX_MS // 1000


@settings(max_examples=40)
@given(specs(uris=URIS.filter(lambda uri: uri.startswith(("hf://", "s3://")))))
def test_the_loader_reads_every_list_of_arguments(spec: dict[str, Any]) -> None:
    one = service(**spec)
    job = desired_loader.job(one, "image", "")
    container = job["spec"]["template"]["spec"]["containers"][0]
    config = parse(LoaderConfig, unescaped(container["args"]), {}, "loader").value
    parsed = loader_uri.parse(config.model)
    loader_uri.check_revision(config.revision)
    assert config.model == one.spec.model.uri
    assert config.revision == one.spec.model.revision
    # The engine is told to open what the loader leaves there.
    assert desired_engine.model_path(one.spec.model) == "/".join(
        part for part in (config.target, parsed.file) if part
    )


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: str(option.field))
def test_an_option_has_the_bounds_of_the_engine_s_setting(option: Any) -> None:
    doc, schema = doc_of(EngineConfig, option.setting), option.schema
    assert tuple(schema.get("enum", ())) == doc.choices
    if doc.minimum is not None and not option.is_quantity:
        assert schema["minimum"] == doc.minimum
    if doc.maximum is not None:
        assert schema["maximum"] == doc.maximum
    assert option.flag == flag_of(option.setting)


def test_every_setting_of_the_engine_is_an_option_or_the_operator_s() -> None:
    ours = {flag.removeprefix("--no-").removeprefix("--") for flag in OURS}
    settings_of_ours = {name for name in names_of(EngineConfig) if flag_of(name)[2:] in ours}
    options = {option.setting for option in OPTIONS}
    assert not settings_of_ours & options
    assert settings_of_ours | options == set(names_of(EngineConfig))


@pytest.mark.parametrize(
    "argument", ["plain", "--x=a b", "$(HOME)", "a;b", "'", '"', "ü", "-", "--", "$$", "a\nb"]
)
def test_each_further_argument_arrives_whole(argument: str) -> None:
    template = desired_engine.pod_template(service(engine={"extraArgs": [argument]}), "i", "")
    assert unescaped(template["spec"]["containers"][0]["args"])[-1] == argument


def test_what_the_operator_takes_for_granted_of_the_engine_is_so() -> None:
    assert EngineConfig().max_num_seqs == DEFAULT_PLACES
    assert failures.of_status(EXIT_STUCK) == "Stuck"
