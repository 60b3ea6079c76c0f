import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from octavo.runtime import logs


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """Log settings are global: puts back what was there."""
    names = ("", "uvicorn", "uvicorn.access", "uvicorn.error", "grpc", "asyncio", "httpx", "httpx2")
    loggers = [logging.getLogger(name) for name in names]
    before = [(g.handlers[:], g.level, g.filters[:], g.propagate) for g in loggers]
    yield
    structlog.reset_defaults()
    for logger, (handlers, level, filters, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.filters[:] = handlers, filters
        logger.setLevel(level)
        logger.propagate = propagate


def configured(*, json: bool = True, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(json=json, level=level, service="octavo-test", stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_object_with_its_fields() -> None:
    stream = configured()
    structlog.get_logger("octavo.x").info("request_finished", id="a", tokens=3)
    [line] = lines(stream)
    assert line["event"] == "request_finished"
    assert (line["id"], line["tokens"], line["level"]) == ("a", 3, "info")
    assert (line["service"], line["logger"]) == ("octavo-test", "octavo.x")
    assert str(line["timestamp"]).endswith("Z")


def test_lines_of_libraries_take_the_same_form() -> None:
    stream = configured()
    logging.getLogger("some.library").warning("odd: %s", 5)
    [line] = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("odd: 5", "warning", "some.library")
    assert line["service"] == "octavo-test"


def test_text_has_no_colours_outside_a_terminal() -> None:
    stream = configured(json=False)
    structlog.get_logger("octavo.x").info("engine_ready", seconds=2)
    assert "engine_ready" in stream.getvalue()
    assert "seconds=2" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_an_exception_stays_within_its_object() -> None:
    stream = configured()
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("octavo.x").exception("failed")
    [line] = lines(stream)
    assert "ValueError: broken" in str(line["exception"])


@pytest.mark.parametrize("json", [True, False], ids=["json", "text"])
def test_a_traceback_shows_no_values_of_variables(json: bool) -> None:
    stream = configured(json=json)

    def fails(prompt: str) -> None:
        raise ValueError(len(prompt))

    try:
        fails("a secret " + "that nobody may log")
    except ValueError:
        structlog.get_logger("octavo.x").exception("failed")
    assert "ValueError: 28" in stream.getvalue()
    assert "in fails" in stream.getvalue()
    assert "a secret that" not in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "path", "count"),
    [
        ("info", "/healthz", 0),
        ("info", "/readyz?x=1", 0),
        ("info", "/metrics", 0),
        ("info", "/v1/models", 1),
        ("debug", "/healthz", 1),
    ],
)
def test_probes_and_scrapes_are_never_above_debug(level: str, path: str, count: int) -> None:
    stream = configured(level=level)
    form = '%s - "%s %s HTTP/%s" %d'
    logging.getLogger("uvicorn.access").info(form, "127.0.0.1:1", "GET", path, "1.1", 200)
    assert len(lines(stream)) == count
    if count and level == "debug":
        assert lines(stream)[0]["level"] == "debug"


@pytest.mark.parametrize("library", ["httpx", "httpx2", "httpcore2"])
def test_of_requests_that_we_send_no_library_tells(library: str) -> None:
    stream = configured()
    logging.getLogger(library).info("HTTP Request: GET http://here/apis/v1/pods")
    logging.getLogger(library).warning("broken")
    assert len(lines(stream)) == 1


def test_levels_below_the_threshold_are_silent() -> None:
    stream = configured(level="warning")
    structlog.get_logger("octavo.x").info("nothing")
    logging.getLogger("other").info("nothing")
    structlog.get_logger("octavo.x").warning("something")
    assert [line["event"] for line in lines(stream)] == ["something"]


def test_configuring_again_replaces_the_stream() -> None:
    first, second = configured(), configured()
    structlog.get_logger("octavo.x").info("here")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1
