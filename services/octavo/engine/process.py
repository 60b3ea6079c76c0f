"""One engine process: wires thread, shell and server, and sees them through their life."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping

import structlog
from prometheus_client import CollectorRegistry

from octavo.engine.config import EngineConfig
from octavo.engine.engine_thread import EngineThread
from octavo.engine.health import Health, stale_after_s, watch
from octavo.engine.metrics import EngineMetrics
from octavo.engine.server import EngineServer
from octavo.engine.session import EngineShell, Loaded
from octavo.engine.spans import RequestSpans
from octavo.engine.stepper import Bundle, Stepper
from octavo.runtime import logs, telemetry
from octavo.runtime.env import Env, SystemEnv
from octavo.runtime.status_server import StatusServer
from octavo.runtime.tls_folder import TlsFolder
from octavo.v1 import engine_pb2
from octavo.v1.errors import BAD_SETTING, INTERNAL, OctavoError

log = structlog.get_logger(__name__)

EXIT_STUCK = 70
"""Exit status of the watchdog, so that whoever restarts the process can tell."""
_ETA_MS = {"model": 8000, "weights": 6000, "memory": 3000, "warm-up": 2000, "pins": 1000}
"""Rough time to readiness from each stage on: what Retry-After says while loading."""


def serve(config: EngineConfig, environ: Mapping[str, str]) -> int:
    """Serves until SIGTERM or a failure; returns the exit status."""
    logs.configure(json=True, level="info", service="octavo-engine", stream=sys.stderr)
    telemetry.configure("octavo-engine", environ)

    async def run() -> int:
        return await _Process(config).run()  # grpc.aio binds to the running loop when made

    return asyncio.run(run())


class _Process:
    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._env = SystemEnv()
        self._epoch = int(self._env.new_id()[:15], 16)
        self._shell = EngineShell(epoch=self._epoch, spans=RequestSpans())
        self._registry = CollectorRegistry()
        tls = _tls_folder(config, self._env)
        if tls is not None:
            tls.observe(self._registry, "octavo:")
        self._server = EngineServer(
            self._shell, self._env.new_id, tls=tls, caller=config.tls_client
        )
        self._status = StatusServer(
            self._registry, self._health, key="metrics_listen", origin="engine"
        )
        self._thread = EngineThread(self._load, self._failed)
        self._running: asyncio.AbstractEventLoop
        self._end: asyncio.Future[int]
        self._draining: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Listens, loads, serves, drains; returns the exit status."""
        self._running = asyncio.get_running_loop()
        self._end = self._running.create_future()
        await self._server.start(self._config.listen, plaintext=self._config.plaintext)
        if self._config.metrics_listen:
            await self._status.start(self._config.metrics_listen)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._running.add_signal_handler(number, self._begin_drain)
        self._thread.start()
        watchdog = asyncio.create_task(self._watchdog())
        status = await self._end
        watchdog.cancel()
        self._thread.stop()
        self._status.stop()
        await self._server.stop()
        return status

    def _health(self) -> Health:
        stepper = self._thread.stepper
        began = None if stepper is None else stepper.turn_began
        return Health(
            stage=engine_pb2.Stage.Name(self._shell.feed.stage).removeprefix("STAGE_").lower(),
            step=0 if stepper is None else stepper.core.steps,
            step_age_s=0.0 if began is None else self._env.now() - began,
            stale_s=stale_after_s(self._config.watchdog_s),
        )

    def _load(self) -> Stepper:
        """Loads the model; runs on the engine's thread."""
        from octavo.engine.loading import Loading

        engine = Loading(
            self._config,
            env=self._env,
            epoch=self._epoch,
            report=self._report,
            make_metrics=lambda name: EngineMetrics(self._registry, name),
            wake=self._thread.wake,
        ).run()
        stepper = Stepper(
            engine.core,
            publish=self._publish,
            wake=self._thread.wake,
            clock=self._env.now,
            pause=threading.Event().wait,
            orders=engine.orders,
        )
        loaded = Loaded(
            card=engine.card,
            files=engine.files,
            encoder=engine.encoder,
            put=stepper.put,
            count_slow=engine.core.metrics.slow_consumers.inc,
        )
        self._running.call_soon_threadsafe(self._attach, loaded)
        return stepper

    def _attach(self, loaded: Loaded) -> None:
        serving = self._shell.attach(loaded)
        self._opening = asyncio.create_task(self._server.set_serving(serving=serving))
        self._report("ready", "", seconds=0.0, done=True)

    def _publish(self, bundle: Bundle) -> None:
        self._running.call_soon_threadsafe(self._shell.on_bundle, bundle)

    def _failed(self, error: BaseException) -> None:
        """Tells why loading or stepping ended; runs on the engine's thread."""
        known = error if isinstance(error, OctavoError) else OctavoError(INTERNAL, id=self._epoch)
        self._write_report(
            {"stage": "failed", "code": known.kind.code, "text": known.message,
             "help": known.help, "done": True, "seconds": 0.0}
        )  # fmt: skip
        print(f"{known}\n  help: {known.help}", file=sys.stderr)  # noqa: T201
        self._running.call_soon_threadsafe(self._end_with, known)

    def _end_with(self, error: OctavoError) -> None:
        self._shell.feed.set_stage(engine_pb2.STAGE_FAILED, error.message, error=error)
        if not self._end.done():
            # A moment for subscribers to learn the reason.
            self._running.call_later(0.2, self._finish, error.kind.exit_code)

    def _finish(self, status: int) -> None:
        if not self._end.done():
            self._end.set_result(status)

    def _report(self, stage: str, text: str, *, seconds: float, done: bool) -> None:
        """Tells a stage to the log, the supervisor and the gateways; on any thread."""
        log.info("stage", stage=stage, text=text, seconds=round(seconds, 3), done=done)
        self._write_report(
            {"stage": stage, "text": text, "seconds": round(seconds, 3), "done": done}
        )
        if not done:
            warming = stage == "warm-up"
            kind = engine_pb2.STAGE_WARMING if warming else engine_pb2.STAGE_LOADING
            eta = _ETA_MS.get(stage, 0)
            self._running.call_soon_threadsafe(
                lambda: self._shell.feed.set_stage(kind, stage, eta_ms=eta)
            )

    def _write_report(self, line: dict[str, object]) -> None:
        if self._config.report_fd >= 0:
            try:
                os.write(self._config.report_fd, json.dumps(line).encode() + b"\n")
            except OSError as error:
                log.warning("report_not_written", reason=str(error))

    def _begin_drain(self) -> None:
        """First signal: finish what runs. Second: end now."""
        if self._draining is not None or self._thread.stepper is None:
            self._finish(0)
            return
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        await self._server.set_serving(serving=False)
        async for remaining in self._shell.drain(self._config.drain_s):
            log.info("draining", remaining=remaining)
        self._finish(0)

    async def _watchdog(self) -> None:
        """Ends a stuck process, with the stacks of its threads in the log: it cannot heal."""

        async def tell(serving: bool) -> None:
            await self._server.set_serving(serving=serving)

        await watch(self._health, limit_s=self._config.watchdog_s, tell=tell)
        log.critical("engine_stuck", limit_s=self._config.watchdog_s)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(EXIT_STUCK)


def _tls_folder(config: EngineConfig, env: Env) -> TlsFolder | None:
    """Returns what the engine shows; None in plaintext.

    Raises:
        OctavoError: BAD_SETTING for settings that do not fit together.
    """

    def bad(key: str, reason: str) -> OctavoError:
        value = getattr(config, key)
        return OctavoError(BAD_SETTING, key=key, value=value, origin="engine", reason=reason)

    if not config.tls_dir:
        if config.tls_client:
            raise bad("tls_client", "there is no --tls-dir: nobody would be asked for the name")
        return None
    if not config.tls_client:
        raise bad("tls_client", "--tls-dir needs the name of whoever may call")
    if config.plaintext:
        raise bad("plaintext", "--tls-dir excludes it")
    return TlsFolder(config.tls_dir, key="tls_dir", origin="engine", wall=env.wall)
