"""The file of prefixes that a start is to pin."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.engine.pin_file import parse_pin, read_pins
from octavo.v1.errors import OctavoError


def test_each_line_is_a_prefix_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "pins.jsonl"
    path.write_text(
        '{"messages": [{"role": "system", "content": "Be brief. \\u2603"}]}\n\n'
        '{"text": "Once", "cache_salt": "tales", "ttl_s": 1.5}\r\n'
        '{"token_ids": [1, 2, 3]}\n',
        encoding="utf-8",
    )
    (one, first), (three, second), (four, third) = read_pins(path)
    assert (one, three, four) == (1, 3, 4)
    (message,) = first.messages.messages
    assert (message.role, message.content, first.ttl_ms) == ("system", "Be brief. \u2603", 0)
    assert (second.text, second.cache_salt, second.ttl_ms) == ("Once", "tales", 1500)
    assert list(third.token_ids.ids) == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "is no JSON object"),
        ('{"prompt": "a"}', "prompt is no field; there are messages, text"),
        ("{}", "must have one of"),
        ('{"text": "a", "token_ids": [1]}', "must have one of"),
        ('{"text": 1}', "text must be a string"),
        ('{"messages": {}}', "messages must be a list"),
        ('{"messages": [{"role": "system"}]}', "role and content, and nothing else"),
        ('{"messages": [{"role": "system", "content": null}]}', "content must be a string"),
        ('{"token_ids": [1, -1]}', "token_ids must be a list of numbers"),
        ('{"token_ids": [true]}', "token_ids must be a list of numbers"),
        ('{"token_ids": [4294967296]}', "token_ids must be a list of numbers"),
        ('{"text": "a", "ttl_s": 0}', "ttl_s must be a number of seconds"),
        ('{"text": "a", "ttl_s": NaN}', "ttl_s must be a number of seconds"),
        ('{"text": "a", "ttl_s": true}', "ttl_s must be a number of seconds"),
    ],
)
def test_a_line_that_is_no_prefix_says_why(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_pin(line)


def test_a_bad_file_is_one_error_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "pins.jsonl"
    path.write_text('{"text": "a"}\n{"text": 1}\n')
    with pytest.raises(OctavoError, match=r"pins\.jsonl.*line 2: text must be") as caught:
        read_pins(path)
    assert caught.value.kind.name == "bad_setting"
    with pytest.raises(OctavoError, match="No such file"):
        read_pins(tmp_path / "nothing")
    path.write_bytes(b"\xff\xff")
    with pytest.raises(OctavoError, match="utf-8"):
        read_pins(path)
