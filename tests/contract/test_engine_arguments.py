"""What the operator writes into pods is what engine and loader read: they share no code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from tests.operator.building import service
from tests.operator.specs import URIS, specs

from octavo.engine.config import EngineConfig
from octavo.engine.process import EXIT_STUCK
from octavo.loader import model_uri as loader_uri
from octavo.loader.config import LoaderConfig
from octavo.operator import desired_engine, desired_loader, failures, names
from octavo.operator.kinds import Manifest
from octavo.operator.options import OPTIONS, OURS
from octavo.operator.replicas import DEFAULT_PLACES
from octavo.runtime.arguments import parse
from octavo.runtime.settings import doc_of, flag_of
from octavo.runtime.settings import names as names_of


def unescaped(arguments: list[str]) -> list[str]:
    """Returns what a process gets: kubelet makes one dollar of two."""
    return [argument.replace("$$", "$") for argument in arguments]


def engine_config(**spec: Any) -> EngineConfig:
    template = desired_engine.pod_template(service(**spec), "image", "")
    container: Manifest = template["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "octavo.engine"]
    return parse(EngineConfig, unescaped(container["args"]), {}, "engine").value


@settings(deadline=None, max_examples=40)
@given(specs(uris=URIS))
def test_the_engine_reads_every_list_of_arguments(spec: dict[str, Any]) -> None:
    config = engine_config(**spec)
    one = service(**spec)
    assert config.model == desired_engine.model_path(one.spec.model)
    assert config.served_name == one.served_names
    assert config.plaintext
    assert config.listen == f"0.0.0.0:{names.GRPC_PORT}"
    assert config.metrics_listen == f"0.0.0.0:{names.STATUS_PORT}"
    assert config.drain_s == one.spec.rollout.drain_seconds


@settings(deadline=None, max_examples=40)
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
