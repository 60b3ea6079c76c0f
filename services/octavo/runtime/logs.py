"""Log lines of a process: one event a line with fields, as text or JSON, ours and the libraries'.

Lines of uvicorn, grpc and whoever else uses `logging` take the same form. Access lines of probes
and scrapes are never above debug. Knows no event.
"""

from __future__ import annotations

import logging
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

QUIET_PATHS = ("/health", "/healthz", "/readyz", "/metrics")
"""Asked for every few seconds by machines."""

_NOISY = ("uvicorn.error", "uvicorn.access", "uvicorn", "asyncio", "grpc", "grpc._cython")

_HTTP_CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2")
"""They tell of each request, which is for whoever sends it to tell."""


class _QuietProbes(logging.Filter):
    """Lowers uvicorn's access lines of probes to debug."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level

    def filter(self, record: logging.LogRecord) -> bool:
        # uvicorn's arguments: client, method, path, HTTP version, status.
        arguments = record.args
        if isinstance(arguments, tuple) and len(arguments) >= 3:
            path = str(arguments[2]).partition("?")[0]
            if path in QUIET_PATHS:
                record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return record.levelno >= self._level


def configure(*, json: bool, level: str, service: str, stream: TextIO) -> None:
    """Sends all log lines of this process to a stream; the last call counts.

    Args:
        json: objects for machines instead of text for people.
        level: debug, info, warning or error.
        service: name of the process, a field of each JSON line.
        stream: standard error, or an open file.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]

    def name_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if json:
        shared.append(name_service)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(json=json, colors=stream.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(threshold)
    _adopt_libraries(threshold)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # Tests configure more than once.
        cache_logger_on_first_use=False,
    )


def _rendering(*, json: bool, colors: bool) -> list[Processor]:
    if json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # The default shows the values of local variables, and with them prompts.
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]


def _adopt_libraries(threshold: int) -> None:
    """Makes libraries that bring handlers of their own use ours."""
    for name in _NOISY:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    access = logging.getLogger("uvicorn.access")
    access.setLevel(logging.NOTSET)
    access.filters.clear()
    access.addFilter(_QuietProbes(threshold))
    # Their informative lines tell of inner life that nobody here can use.
    for name in ("uvicorn.error", "asyncio", "grpc", *_HTTP_CLIENTS):
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
