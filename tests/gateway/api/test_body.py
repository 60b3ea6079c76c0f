from __future__ import annotations

import asyncio
import contextlib
import json
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.api.scripted import World

from octavo.gateway.api import body
from octavo.gateway.api.body import (
    MAX_CONTAINERS,
    MAX_ENTRIES,
    MAX_STRINGS,
    check_parts,
    parse_body,
    parse_object,
    read_body,
)
from octavo.v1.errors import OVERLOADED, OctavoError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), JSON, max_size=3))
def test_any_object_comes_through(value: dict[str, Any]) -> None:
    assert parse_object(json.dumps(value).encode()) == value


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return ('{"tools":' + opening * (depth - 1) + closing * (depth - 1) + "}").encode()


@given(st.integers(1, 200), st.sampled_from(['[{"a":', "["]), st.text())
def test_the_depth_limit_is_exact(depth: int, opening: str, text: str) -> None:
    closing = "}]" if opening != "[" else "]"
    levels = depth * (2 if opening != "[" else 1)
    data = f"{opening * depth}{json.dumps(text)}{closing * depth}".encode()
    if levels <= 64:
        check_parts(data)
    else:
        with pytest.raises(OctavoError, match="OCT-1013"):
            check_parts(data)


@pytest.mark.parametrize("depth", [65, 500, 3000, 1_000_000])
def test_deep_bodies_are_refused_and_the_next_one_is_served(depth: int) -> None:
    world = World()
    response = world.post("/v1/chat/completions", nested(depth))
    assert response.status == 400
    assert response.error["code"] in ("invalid_value", "invalid_json")
    assert world.chat().status == 200


def test_a_deep_schema_is_refused() -> None:
    schema = b'{"properties":{"a":' * 500 + b"1" + b"}}" * 500
    body = b'{"model":"smollm2","messages":[],"response_format":' + schema + b"}"
    response = World().post("/v1/chat/completions", body)
    assert (response.status, response.error["octavo"]["code"]) == (400, "OCT-1013")


def test_brackets_in_text_do_not_count() -> None:
    check_parts(json.dumps({"a": "[" * 1000, 'b"[[': '\\"[{' * 500}).encode())


@pytest.mark.parametrize(
    "make",
    [
        lambda: b'["' + b'\\"' * 2_000_000,
        lambda: b"[" * 4_000_000,
        lambda: b"[]," * 2_000_000,
        lambda: b'"[' * 2_000_000,
        lambda: b"[" * 2_000_000 + b"]" * 2_000_000,
        lambda: (b"[" * 60 + b"]" * 60) * 30_000,
        lambda: (b"[" * 60 + b"]" * 60) * 4_000,
    ],
    ids=["open string", "open", "many", "quotes", "deep", "many deep", "deep within bounds"],
)
def test_the_depth_check_is_linear(make: Callable[[], bytes]) -> None:
    data = make()
    start = time.process_time()
    with contextlib.suppress(OctavoError):
        check_parts(data)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda: b'["' + b'","'.join([b"x"] * MAX_STRINGS) + b'"]', True),
        (lambda: b'["' + b'","'.join([b"x"] * (MAX_STRINGS + 1)) + b'"]', False),
        (lambda: b"[" + b",".join([b"7"] * (MAX_ENTRIES + 1)) + b"]", True),
        (lambda: b"[" + b",".join([b"7"] * (MAX_ENTRIES + 2)) + b"]", False),
        (lambda: b'["' + b'\\"' * (4 * MAX_STRINGS) + b'"]', True),
        (lambda: b"[" + b",".join([b"[]"] * (MAX_CONTAINERS - 1)) + b"]", True),
        (lambda: b"[" + b",".join([b"[]"] * MAX_CONTAINERS) + b"]", False),
    ],
    ids=["strings", "too many", "values", "too many", "quotes in a text", "lists", "too many"],
)
def test_a_body_has_a_bounded_number_of_parts(make: Callable[[], bytes], allowed: bool) -> None:
    data = make()
    if allowed:
        check_parts(data)
        return
    with pytest.raises(OctavoError, match="OCT-1001"):
        parse_object(data)


@pytest.mark.parametrize("data", [b'"' * 30_000_000, b"," * 30_000_000], ids=["quotes", "commas"])
def test_what_has_far_too_many_parts_is_not_counted_to_its_end(data: bytes) -> None:
    start = time.process_time()
    with pytest.raises(OctavoError):
        check_parts(data)
    assert time.process_time() - start < 0.1


PIECES = st.sampled_from(
    [b'"', b"\\", b"[", b"]", b"{", b"}", b",", b"a", b'\\"', b"\\\\", b'"[",']
)


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=60).map(b"".join), st.integers(1, 7))
def test_where_a_body_is_sliced_changes_nothing(data: bytes, size: int) -> None:
    def outcome() -> str:
        try:
            check_parts(data)
        except OctavoError as error:
            return error.message
        return ""

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MAX_STRINGS", 4), ("MAX_ENTRIES", 3), ("MAX_CONTAINERS", 5)):
            patch.setattr(body, name, value)
        patch.setattr(body, "MAX_JSON_DEPTH", 3)
        whole = outcome()
        patch.setattr(body, "_SLICE", size)
        # Which bound is passed first may depend on the slices; whether one is does not.
        assert bool(outcome()) == bool(whole)


def test_others_run_while_a_large_body_is_checked() -> None:
    async def scenario() -> int:
        parsing = asyncio.create_task(parse_body(b'{"a":"' + b"\\[" * 10_000_000 + b'"}'))
        turns = 0
        while not parsing.done():
            await asyncio.sleep(0)
            turns += 1
        with pytest.raises(OctavoError, match="OCT-1001"):
            parsing.result()
        return turns

    assert asyncio.run(scenario()) > 50


BROKEN = {
    "empty": b"",
    "cut": b'{"model": "smollm2"',
    "open list": b'{"a": [' * 10,
    "list": b"[]",
    "text": b'"x"',
    "nan": b'{"temperature": NaN}',
    "infinity": b'{"temperature": -Infinity}',
    "not utf-8": b'{"model": "\xff\xfe"}',
    "lone surrogate": b'{"model": "\\ud800 x"}',
    "two values": b"{}{}",
    "form": b"model=smollm2",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_what_is_not_json_is_refused(data: bytes, path: str) -> None:
    response = World().post(path, data)
    assert (response.status, response.error["code"]) == (400, "invalid_json")


def test_duplicate_keys_are_fine() -> None:
    body = b'{"model":"x","model":"smollm2","prompt":"a"}'
    assert World().post("/v1/completions", body).status == 200


def test_a_body_that_is_given_up_is_free_while_its_error_is_still_looked_at() -> None:
    class Part(bytearray):
        """Bytes that can be watched."""

    async def scenario() -> None:
        parts = [Part(b"x" * 100) for _ in range(2)]
        watched = weakref.ref(parts[1])

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": True}
            await asyncio.sleep(0)
            raise OctavoError(OVERLOADED, reason="memory")

        with pytest.raises(OctavoError) as caught:
            await read_body({"headers": []}, receive, limit=1000)
        assert caught.value.kind is OVERLOADED
        assert watched() is None

    asyncio.run(scenario())
