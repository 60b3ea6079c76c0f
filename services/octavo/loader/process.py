"""One loader process: signals, the load, and the last words."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec
import structlog

from octavo.loader.config import LoaderConfig
from octavo.loader.load import Load
from octavo.runtime import arguments, logs
from octavo.runtime.env import Env, SystemEnv
from octavo.v1.errors import INTERNAL, OctavoError

log = structlog.get_logger(__name__)

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Where Kubernetes reads the last words of a container."""
_MAX_WORDS: Final = 1000


def run(config: LoaderConfig, environ: Mapping[str, str]) -> int:
    """Loads a model; returns the exit status."""
    logs.configure(
        json=not sys.stderr.isatty(), level="info", service="octavo-loader", stream=sys.stderr
    )
    _quiet_libraries()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    env = SystemEnv()
    try:
        _load(config, environ, env)
    except OctavoError as error:
        return _fail(error, config)
    except Exception:  # the outermost loop: whoever waits for a reason gets one
        name = env.new_id()
        log.exception("loader_broke", id=name)
        return _fail(OctavoError(INTERNAL, id=name), config)
    return 0


def _load(config: LoaderConfig, environ: Mapping[str, str], env: Env) -> None:
    began = env.now()
    whole = asyncio.run(Load(config, environ, env).run())
    seconds = env.now() - began
    log.info(
        "loaded",
        text=f"{whole.model} at {whole.revision} is in {config.target}:"
        f" {len(whole.files)} files, {whole.num_bytes / 1e6:,.0f} MB, {seconds:,.1f} s",
        model=whole.model, revision=whole.revision, target=config.target,
        files=len(whole.files), bytes=whole.num_bytes, seconds=round(seconds, 3),
    )  # fmt: skip


def _end(number: int, _frame: FrameType | None) -> None:
    """Ends at once: everything on the volume may be left as it is at any moment."""
    name = signal.Signals(number).name
    os.write(2, f"ended by {name}; the next loader goes on from here\n".encode())
    os._exit(128 + number)


def _fail(error: OctavoError, config: LoaderConfig) -> int:
    """Leaves the reason where it is looked for; returns the exit status."""
    path = Path(config.termination_log) if config.termination_log else TERMINATION_LOG
    if config.termination_log or path.exists():
        words = {"code": error.kind.code, "text": error.message, "help": error.help}
        words = {key: text[:_MAX_WORDS] for key, text in words.items()}
        try:
            path.write_bytes(msgspec.json.encode(words))
        except OSError as failure:
            log.warning("termination_log_failed", path=str(path), reason=failure.strerror)
    return arguments.complain(error)


def _quiet_libraries() -> None:
    """Keeps the addresses of requests, which carry signatures, out of the log."""
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
