"""What a model says about its own use is checked and becomes what the protocol takes."""

from __future__ import annotations

import pytest

from octavo.engine.models import generation
from octavo.engine.models.fields import Fields, UnreadableError
from octavo.v1 import engine_pb2


def test_defaults_fit_the_protocols_message() -> None:
    found = generation.sampling_from_json(
        Fields({"temperature": 0.6, "top_k": 20, "top_p": 1, "max_new_tokens": 7, "min_p": None})
    )
    assert found == {"temperature": 0.6, "top_k": 20, "top_p": 1.0}
    message = engine_pb2.Sampling(**found)  # type: ignore[arg-type]
    assert message.top_k == 20
    assert not message.HasField("repetition_penalty")


def test_float32_of_gguf_becomes_the_number_that_was_meant() -> None:
    fields = Fields({"general.sampling.temp": 0.699999988079071, "general.sampling.top_k": 40})
    assert generation.sampling_from_gguf(fields) == {"temperature": 0.7, "top_k": 40}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("temperature", float("inf")),
        ("temperature", "warm"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", 1.5),
        ("top_k", -2),
        ("min_p", -1),
        ("repetition_penalty", 0),
    ],
)
def test_defaults_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(UnreadableError, match=name):
        generation.sampling_from_json(Fields({name: value}))


def test_token_ids_are_one_or_many() -> None:
    assert generation.token_ids(Fields({}), "eos_token_id", 10) == ()
    assert generation.token_ids(Fields({"eos_token_id": 3}), "eos_token_id", 10) == (3,)
    assert generation.token_ids(Fields({"eos_token_id": [3, 1, 3]}), "eos_token_id", 10) == (3, 1)
    for wrong in (10, -1, True, "3", [3, None]):
        with pytest.raises(UnreadableError, match="eos_token_id"):
            generation.token_ids(Fields({"eos_token_id": wrong}), "eos_token_id", 10)


def test_a_tokenizer_file_nested_without_end_is_refused() -> None:
    nested = b'{"post_processor":' + b'{"processors":[' * 100_000
    with pytest.raises(UnreadableError, match=r"tokenizer\.json is not one"):
        generation.template_begins_with_token(nested)
