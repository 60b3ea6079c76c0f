from __future__ import annotations

import os
import sys
from pathlib import Path

from octavo.cli.plan import ServePlan, plan
from octavo.cli.settings import ServeSettings
from octavo.engine.config import EngineConfig
from octavo.gateway.config import GatewayConfig
from octavo.runtime.arguments import Sources, parse


def planned(environ: dict[str, str] | None = None, **flags: object) -> ServePlan:
    sources = Sources(flags=flags, environ=environ or {}, file=None)
    return plan(
        ServeSettings.load(sources),
        ports=list(range(20000, 20012)),
        cores=8,
        environ={"PATH": "/bin"} | (environ or {}),
        valkey="/x/valkey-server",
        logs=Path("/tmp/x"),
    )


def arguments(command: tuple[str, ...]) -> list[str]:
    assert command[:2] == (sys.executable, "-m")
    return list(command[3:])


def test_engines_and_gateway_agree_on_the_addresses() -> None:
    made = planned(replicas=3)
    engines = [
        parse(EngineConfig, arguments(e.command), e.environ, "e").value for e in made.engines
    ]
    gateway = parse(GatewayConfig, arguments(made.gateway.command), made.gateway.environ, "g").value
    assert gateway.engines == tuple(e.listen for e in engines)
    addresses = [a for e in engines for a in (e.listen, e.metrics_listen)]
    assert len(set(addresses)) == 6
    assert all(a.startswith("127.0.0.1:") for a in addresses)


def test_children_get_every_setting_that_differs_from_the_default() -> None:
    made = planned(max_model_len=2048, prefix_caching=False, served_name="a,b", cors_origin="*")
    engine = parse(EngineConfig, arguments(made.engines[0].command), {}, "e").value
    gateway = parse(GatewayConfig, arguments(made.gateway.command), {}, "g").value
    assert (engine.max_model_len, engine.prefix_caching) == (2048, False)
    assert engine.served_name == ("a", "b")
    assert gateway.cors_origin == ("*",)


def test_children_read_neither_our_variables_nor_the_file(tmp_path: Path) -> None:
    made = planned(environ={"OCTAVO_MAX_MODEL_LEN": "99", "OCTAVO_CONFIG": "other.toml"})
    for child in (*made.engines, made.gateway):
        ours = {k: v for k, v in child.environ.items() if k.startswith("OCTAVO_")}
        assert ours.pop("OCTAVO_CONFIG") == ""
        assert set(ours) <= {"OCTAVO_REDIS"}
    assert "--max-model-len" in made.engines[0].command


def test_secret_of_the_redis_url_stands_on_no_command_line() -> None:
    url = "redis://:geheim@10.0.0.1:6379/0"
    made = planned(redis=url)
    assert made.store is None
    assert not any("geheim" in word for word in made.gateway.command)
    assert made.gateway.environ["OCTAVO_REDIS"] == url


def test_the_gateway_is_told_that_others_may_reach_it() -> None:
    made = planned(host="0.0.0.0", no_auth=True)
    gateway = parse(GatewayConfig, arguments(made.gateway.command), {}, "g").value
    assert (gateway.host, gateway.no_auth) == ("0.0.0.0", True)


def test_embedded_store_is_on_loopback_and_keeps_nothing() -> None:
    made = planned(replicas=2)
    assert made.store is not None
    command = made.store.command
    assert command[command.index("--bind") + 1] == "127.0.0.1"
    assert command[command.index("--save") + 1] == ""
    assert made.redis == f"redis://127.0.0.1:{command[command.index('--port') + 1]}/0"


def test_machine_is_divided_between_replicas() -> None:
    made = planned(replicas=4, memory_fraction=0.8)
    engine = parse(EngineConfig, arguments(made.engines[0].command), {}, "e").value
    assert (engine.threads, engine.memory_fraction) == (2, 0.2)


def test_port_zero_takes_a_free_one() -> None:
    made = planned(port=0)
    assert made.port == 20011
    gateway = parse(GatewayConfig, arguments(made.gateway.command), {}, "g").value
    assert gateway.port == made.port


def test_variables_of_others_reach_the_children() -> None:
    made = planned(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://o", "PATH": os.defpath})
    assert made.engines[0].environ["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://o"
