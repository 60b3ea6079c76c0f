from __future__ import annotations

import json
from typing import Any

import pytest
from tests.operator.building import service
from tests.operator.structural_check import problems_of

from octavo.operator import engine_cache, schema_cache
from octavo.operator.schema_cache import MAX_CHARS, MAX_MESSAGES, MAX_PREFIXES, MAX_SALT


def messages(*contents: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": content} for content in contents]


def test_the_largest_prefixes_stay_far_below_what_etcd_and_config_maps_hold() -> None:
    each = MAX_CHARS // MAX_PREFIXES // MAX_MESSAGES
    prefix = {
        "messages": messages(*["\x01" * each] * MAX_MESSAGES),
        "cacheSalt": "\x01" * MAX_SALT,
        "ttlSeconds": schema_cache.MAX_TTL_S,
    }
    cache: dict[str, Any] = {"pinnedPrefixes": [prefix] * MAX_PREFIXES}
    assert problems_of(cache, schema_cache.cache()) == []
    assert len(json.dumps(cache)) < 500_000
    (text,) = engine_cache.pins(service(cache=cache))["data"].values()
    assert len(text.encode()) < 500_000


@pytest.mark.parametrize(
    "prefix",
    [
        {"text": ""},
        {"text": "x" * (MAX_CHARS + 1)},
        {"messages": []},
        {"messages": messages(*["x"] * (MAX_MESSAGES + 1))},
        {"messages": [{"role": "root", "content": "x"}]},
        {"messages": [{"content": "x"}]},
        {"text": "x", "cacheSalt": "s" * (MAX_SALT + 1)},
        {"text": "x", "ttlSeconds": 0},
        {"token_ids": [1]},
    ],
)
def test_what_no_engine_would_pin_does_not_fit(prefix: dict[str, Any]) -> None:
    assert problems_of({"pinnedPrefixes": [prefix]}, schema_cache.cache())
    assert problems_of({"pinnedPrefixes": [{"text": "x"}]}, schema_cache.cache()) == []


def test_there_are_only_a_few() -> None:
    many = {"pinnedPrefixes": [{"text": "x"}] * (MAX_PREFIXES + 1)}
    assert problems_of(many, schema_cache.cache())
