from __future__ import annotations

import pytest

from octavo.gateway.api.headers import (
    client_label,
    fairness_key,
    idempotency_key,
    ignored_header,
    is_strict,
    route_header,
    timing_header,
)
from octavo.gateway.routing import Route
from octavo.v1.errors import INVALID_VALUE, OctavoError


def scope(query: bytes = b"", **headers: str) -> dict[str, object]:
    pairs = [(k.replace("_", "-").encode(), v.encode("latin-1")) for k, v in headers.items()]
    return {"headers": pairs, "query_string": query}


@pytest.mark.parametrize(
    ("label", "kept"),
    [("a-1", "a-1"), ("x" * 200, "x" * 128), ("a\tb", ""), ("\xe9", ""), ("", "")],
)
def test_the_clients_label_is_short_and_printable(label: str, kept: str) -> None:
    assert client_label(scope(x_request_id=label)) == kept


def test_strictness() -> None:
    assert is_strict(scope(x_octavo_strict="1"))
    assert is_strict(scope(b"a=b&strict=1"))
    assert not is_strict(scope(b"strict=10", x_octavo_strict="0"))


def test_the_route_says_why() -> None:
    route = Route(
        engine="e1",
        hit_tokens=96,
        prompt_tokens=112,
        seconds=0.01234,
        runner_up="e2",
        runner_up_seconds=0.25,
    )
    value = b"e1; hit=96/112; seconds=0.0123; runner-up=e2:0.2500"
    assert route_header(route) == (b"x-octavo-route", value)
    alone = Route(engine="e1", hit_tokens=0, prompt_tokens=1, seconds=0.0)
    assert b"runner-up" not in route_header(alone)[1]


def test_values_are_safe_in_a_header() -> None:
    assert ignored_header(["a", "\u00e9"])[1] == b"a,?"
    assert timing_header({"queue": 1.04, "prefill": 2})[1] == b"queue;dur=1.0, prefill;dur=2.0"


def test_a_line_break_in_a_parameters_name_cannot_split_the_header() -> None:
    assert ignored_header(["a\r\nset-cookie: x"])[1] == b"a??set-cookie??x"


@pytest.mark.parametrize("key", ["a", "0f-9c", "!~", "x" * 255], ids=len)
def test_an_idempotency_key_is_visible_ascii(key: str) -> None:
    assert idempotency_key({"headers": [(b"idempotency-key", key.encode())]}) == key


@pytest.mark.parametrize("key", ["", " ", "a b", "a\n", "x" * 256, "\u00e9"], ids=ascii)
def test_other_idempotency_keys_are_refused(key: str) -> None:
    with pytest.raises(OctavoError) as caught:
        idempotency_key({"headers": [(b"idempotency-key", key.encode("latin-1"))]})
    assert caught.value.kind is INVALID_VALUE
    assert caught.value.param == "Idempotency-Key"


def test_a_fairness_key_is_visible_ascii_and_short() -> None:
    assert fairness_key(scope()) == ""
    assert fairness_key(scope(x_octavo_fairness_key="team-a")) == "team-a"
    for bad in ("a b", "x" * 129, "\u00e9"):
        with pytest.raises(OctavoError) as caught:
            fairness_key(scope(x_octavo_fairness_key=bad))
        assert caught.value.param == "X-Octavo-Fairness-Key"


def test_without_the_header_there_is_no_key() -> None:
    assert idempotency_key({"headers": [(b"idempotency", b"x")]}) == ""
