from __future__ import annotations

import re
import string

import pytest

from octavo.v1 import common_pb2
from octavo.v1.errors import (
    BAD_SETTING,
    CATALOGUE,
    CONTEXT_LENGTH_EXCEEDED,
    INTERNAL,
    MODEL_LOADING,
    ErrorKind,
    OctavoError,
)

KINDS = sorted(CATALOGUE.values(), key=lambda kind: kind.code)


def ids(kind: ErrorKind) -> str:
    return kind.code


def filled(kind: ErrorKind) -> OctavoError:
    texts = (kind.message, kind.help)
    names = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
    values: dict[str, object] = dict.fromkeys(names - {"param"}, "X")
    return OctavoError(kind, param="p", retry_after_ms=0, **values)


def test_codes_are_unique() -> None:
    from octavo.v1 import errors

    kinds = [value for value in vars(errors).values() if isinstance(value, ErrorKind)]
    assert len({kind.code for kind in kinds}) == len(kinds) == len(CATALOGUE)


@pytest.mark.parametrize("kind", KINDS, ids=ids)
def test_row_is_complete(kind: ErrorKind) -> None:
    assert re.fullmatch(r"OCT-[1-5]\d{3}", kind.code)
    assert re.fullmatch("[a-z_]+", kind.name)
    assert kind.help
    assert not kind.help.endswith(".")
    assert kind.exit_code in (range(70, 80) if kind.name.startswith("device_") else range(1, 6))


@pytest.mark.parametrize("kind", KINDS, ids=ids)
def test_range_of_the_code_fits_the_status(kind: ErrorKind) -> None:
    family = kind.code[4:6]
    if family == "10":
        assert 400 <= kind.status < 500
        assert kind.type == "invalid_request_error"
    elif family == "20":
        assert kind.status in (408, 429, 502, 503, 504)
    else:
        assert kind.status == 500


@pytest.mark.parametrize("kind", KINDS, ids=ids)
def test_all_placeholders_are_filled(kind: ErrorKind) -> None:
    error = filled(kind)
    assert str(error) == f"error[{kind.code}]: {error.message}"
    assert "{" not in error.message + error.help


@pytest.mark.parametrize("kind", KINDS, ids=ids)
def test_error_survives_the_wire(kind: ErrorKind) -> None:
    sent = filled(kind)
    sent.retry_after_ms = 1500
    data = sent.to_proto().SerializeToString()
    got = OctavoError.from_proto(common_pb2.Error.FromString(data))
    assert (got.kind, got.message, got.param, got.retry_after_ms) == (kind, sent.message, "p", 1500)
    assert str(got) == str(sent)


def test_help_of_a_received_error_has_no_placeholder() -> None:
    for kind in KINDS:
        assert "{" not in OctavoError.from_proto(common_pb2.Error(code=kind.code)).help, kind.code


def test_code_of_a_newer_catalogue_is_an_internal_error_in_its_own_words() -> None:
    error = OctavoError.from_proto(common_pb2.Error(code="OCT-4711", message="new"))
    assert error.kind is INTERNAL
    assert str(error) == "error[OCT-4711]: new"


def test_missing_number_is_noticed_where_it_is_raised() -> None:
    with pytest.raises(KeyError):
        OctavoError(MODEL_LOADING)


def test_overflow_says_what_clients_look_for() -> None:
    message = OctavoError(CONTEXT_LENGTH_EXCEEDED, limit=8192, tokens=9000).message
    assert "This model's maximum context length is 8192 tokens" in message
    assert "reduce the length of the messages" in message


def test_value_at_fault_is_quoted() -> None:
    error = OctavoError(BAD_SETTING, key="k", value="", origin="o", reason="r")
    assert error.message == "k = '' (o): r"
