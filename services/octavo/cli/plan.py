"""The processes of `octavo serve` as values: commands, variables, ports. Starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.cli.settings import MANAGED, ServeSettings
from octavo.cli.share import share_of
from octavo.runtime.arguments import CONFIG_VARIABLE, as_flags
from octavo.runtime.settings import ENV_PREFIX, doc_of, env_of, flag_of, names

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """One process to start."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """All processes of one `octavo serve`."""

    engines: tuple[ProcessPlan, ...]
    gateway: ProcessPlan
    store: ProcessPlan | None
    """The embedded Valkey; None with a Redis of the user's own."""
    redis: str
    host: str
    port: int
    drain_s: float


def plan(
    settings: ServeSettings,
    *,
    ports: Sequence[int],
    cores: int,
    environ: Mapping[str, str],
    valkey: str,
    logs: Path,
) -> ServePlan:
    """Lays out the processes.

    Args:
        settings: the effective settings.
        ports: free ports of this machine: two for each engine, one for the store, and one for
            the gateway when its own is 0.
        cores: processors that the engines share.
        environ: the environment that the children inherit, less our own variables.
        valkey: path of the embedded server's program.
        logs: folder of the logs, where the store works as well; it writes no file.
    """
    # All settings travel as flags, so a child must not read variables and file a second time.
    inherited = {k: v for k, v in environ.items() if not k.startswith(ENV_PREFIX)}
    inherited[CONFIG_VARIABLE] = ""
    replicas = settings.serve.value.replicas
    own_redis, store_port = settings.serve.value.redis, ports[2 * replicas]
    redis = own_redis or f"redis://{LOOPBACK}:{store_port}/0"
    gateway = replace(settings.gateway.value, port=settings.gateway.value.port or ports[-1])
    listen = [f"{LOOPBACK}:{port}" for port in ports[:replicas]]
    metrics = [f"{LOOPBACK}:{port}" for port in ports[replicas : 2 * replicas]]
    share = share_of(settings.engine.value, replicas=replicas, cores=cores)
    return ServePlan(
        engines=tuple(
            ProcessPlan(
                name=f"engine-{i}",
                command=_python("octavo.engine", share, listen=grpc, metrics_listen=http),
                environ=inherited,
            )
            for i, (grpc, http) in enumerate(zip(listen, metrics, strict=True))
        ),
        gateway=ProcessPlan(
            name="gateway",
            command=_python("octavo.gateway", gateway, engines=",".join(listen)),
            environ=inherited | {env_of("redis"): redis},
        ),
        store=None if own_redis else store_plan(valkey, store_port, logs),
        redis=redis,
        host=gateway.host,
        port=gateway.port,
        drain_s=gateway.drain_s,
    )


def _python(module: str, config: object, **managed: str) -> tuple[str, ...]:
    """Returns the command of a process; secrets never stand on a command line."""
    cls = type(config)
    changed = [
        name
        for name in names(cls)
        if name not in MANAGED
        and not doc_of(cls, name).secret
        and getattr(config, name) != cls.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    ]
    flags = as_flags(config, only=changed)
    for name, value in managed.items():
        flags += [flag_of(name), value]
    return (sys.executable, "-m", module, *flags)


def store_plan(valkey: str, port: int, folder: Path) -> ProcessPlan:
    """Returns the embedded Valkey: loopback, nothing on disk, bounded memory."""
    options = {
        "--bind": LOOPBACK,
        "--port": str(port),
        "--dir": str(folder),
        "--save": "",
        "--appendonly": "no",
        # Records expire; should they come too fast, the ones nearest to expiry go first.
        "--maxmemory": "256mb",
        "--maxmemory-policy": "volatile-ttl",
    }
    command = (valkey, *(part for pair in options.items() for part in pair))
    return ProcessPlan(name="valkey", command=command, environ={})
