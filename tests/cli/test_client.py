from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.api_stand_in import ApiStandIn, api_stand_in, chunk

from octavo.cli.client import Answer, ChatClient, error_of, events
from octavo.v1.errors import BAD_USAGE, ENDPOINT_UNREACHABLE, ENGINE_FAILURE, OctavoError


@pytest.fixture
def api() -> Iterator[ApiStandIn]:
    with api_stand_in() as api:
        yield api


def ask(api: ApiStandIn) -> tuple[str, Answer]:
    answer = Answer()
    with closing(ChatClient(api.url)) as client:
        return "".join(client.stream("m", [{"role": "user", "content": "?"}], answer)), answer


def test_answer_carries_text_reason_usage_and_route(api: ApiStandIn) -> None:
    text, answer = ask(api)
    assert text == "Hello, you"
    assert (answer.finish_reason, answer.usage) == ("stop", {"x": 3})
    assert answer.headers == {"x-octavo-route": "engine-0"}


def test_first_served_model_is_taken(api: ApiStandIn) -> None:
    with closing(ChatClient(api.url)) as client:
        assert client.first_model() == "first"


def test_model_that_still_loads_is_an_error_with_its_stage(api: ApiStandIn) -> None:
    api.models, api.status = [], {"ready": False, "stage": "loading weights", "eta_ms": 4000}
    with closing(ChatClient(api.url)) as client, pytest.raises(OctavoError) as raised:
        client.first_model()
    assert str(raised.value) == "error[OCT-2001]: the model is not ready yet: loading weights"
    assert (raised.value.retry_after_ms, raised.value.kind.exit_code) == (4000, 3)


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://:geheim@h:x", "http://h:99999", "h:80", "ftp://h", "http://", ""]
)
def test_what_is_no_url_is_bad_usage_without_its_password(url: str) -> None:
    with pytest.raises(OctavoError) as raised:
        ChatClient(url)
    assert raised.value.kind is BAD_USAGE
    assert "geheim" not in str(raised.value)


def test_stream_without_its_end_is_an_error_never_an_answer(api: ApiStandIn) -> None:
    api.stream = [chunk("half an ans")]
    with pytest.raises(OctavoError) as raised:
        ask(api)
    assert raised.value.kind is ENGINE_FAILURE


def test_error_within_the_stream_keeps_the_words_of_the_server(api: ApiStandIn) -> None:
    row = {"code": "OCT-2003", "help": "again"}
    error = {"message": "lost in mid-stream", "code": "engine_failure", "octavo": row}
    api.stream = [chunk("half"), f"data: {json.dumps({'error': error})}\n\n"]
    with pytest.raises(OctavoError, match="lost in mid-stream") as raised:
        ask(api)
    assert (raised.value.kind, raised.value.help) == (ENGINE_FAILURE, "again")


def test_refusal_of_another_server_is_found_by_its_code(api: ApiStandIn) -> None:
    api.refusal = (503, {"error": {"message": "not ready: weights", "code": "model_loading"}})
    with pytest.raises(OctavoError) as raised:
        ask(api)
    assert str(raised.value) == "error[OCT-2001]: not ready: weights"
    assert raised.value.kind.exit_code == 3


def test_answer_of_another_program_is_shown_with_its_status() -> None:
    error = error_of(b"<html>Bad gateway</html>", 502)
    assert "HTTP 502: <html>Bad gateway" in error.message


def test_endpoint_that_is_away_is_named() -> None:
    with closing(ChatClient("http://127.0.0.1:1")) as client, pytest.raises(OctavoError) as raised:
        client.first_model()
    assert raised.value.kind is ENDPOINT_UNREACHABLE
    assert "http://127.0.0.1:1" in raised.value.message
    assert raised.value.help == "start it with: octavo serve"


def test_endpoint_that_is_away_is_named_without_its_password() -> None:
    url = "http://me:geheim@127.0.0.1:1"
    with closing(ChatClient(url)) as client, pytest.raises(OctavoError) as raised:
        client.first_model()
    assert "http://127.0.0.1:1" in raised.value.message
    assert "geheim" not in raised.value.message


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n\r"), min_size=1)))
def test_events_survive_comments_and_other_fields(data: list[str]) -> None:
    lines: list[str] = []
    for item in data:
        lines += [": heartbeat", "", "event: x", f"data: {item}", "id: 7", ""]
    assert list(events(iter(lines))) == data


def test_data_of_several_lines_is_one_event() -> None:
    assert list(events(iter(["data: a", "data:b", ""]))) == ["a\nb"]
