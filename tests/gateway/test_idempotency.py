from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.gateway.idempotency import (
    Entry,
    Identity,
    State,
    Step,
    decide,
    decode,
    encode,
    fingerprint_of,
    key_digest,
    next_try,
)

KEY = key_digest("", "k")
PRINT = fingerprint_of("chat", {"a": 1}, num_prompts=1)
OTHER_PRINT = fingerprint_of("chat", {"a": 2}, num_prompts=1)


def entry(state: State = "running", **more: Any) -> Entry:
    identity = Identity(id="a" * 32, created=1_700_000_000, seeds=(2**62 - 1,))
    values: dict[str, Any] = {"key": KEY, "fingerprint": PRINT, "identity": identity, **more}
    if state == "finished":
        values.setdefault("deltas", ((b"\x00one", b"two"),))
    return Entry(state=state, **values)


@pytest.mark.parametrize(
    ("found", "held", "step"),
    [
        (None, False, Step.TAKE),
        (entry("running"), True, Step.WAIT),
        (entry("running"), False, Step.TAKE),
        (entry("finished"), False, Step.REPLAY),
        (entry("free"), False, Step.TAKE),
        (entry("too_large"), False, Step.TOO_LARGE),
    ],
    ids=["nothing", "running", "owner gone", "finished", "free", "too large"],
)
def test_what_a_request_does_with_what_it_finds(
    found: Entry | None, held: bool, step: Step
) -> None:
    assert decide(found, fingerprint=PRINT, held=held) is step


@pytest.mark.parametrize("state", ["running", "finished", "too_large"])
@pytest.mark.parametrize("held", [True, False])
def test_another_body_is_a_conflict_unless_the_key_is_free(state: State, held: bool) -> None:
    assert decide(entry(state), fingerprint=OTHER_PRINT, held=held) is Step.CONFLICT
    assert decide(entry("free"), fingerprint=OTHER_PRINT, held=held) is Step.TAKE


def test_a_next_try_has_the_same_identity_and_a_lease_of_its_own() -> None:
    mine = Identity(id="b" * 32, created=5, seeds=(7,))
    wanted = entry(identity=mine)
    dead = entry("running", tries=3)
    taken = next_try(dead, wanted)
    assert (taken.identity, taken.tries, taken.state) == (dead.identity, 4, "running")
    assert taken.lease != dead.lease
    assert next_try(None, wanted) == wanted


def test_a_free_key_with_another_body_is_used_for_the_new_one() -> None:
    wanted = entry(fingerprint=OTHER_PRINT, identity=Identity(id="b" * 32, created=5, seeds=(7,)))
    taken = next_try(entry("free", tries=2), wanted)
    assert (taken.identity, taken.fingerprint, taken.tries) == (wanted.identity, OTHER_PRINT, 3)


def test_fingerprints_see_what_was_asked_and_not_how_it_was_written() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    turned = {"messages": [{"content": "hi", "role": "user"}], "model": "m"}
    same = fingerprint_of("chat", body, num_prompts=1)
    assert fingerprint_of("chat", turned, num_prompts=1) == same
    others = [
        fingerprint_of("completions", body, num_prompts=1),
        fingerprint_of("chat", body, num_prompts=2),
        fingerprint_of("chat", {**body, "stream": True}, num_prompts=1),
        fingerprint_of("chat", {**body, "messages": []}, num_prompts=1),
    ]
    assert len({same, *others}) == 5


@given(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5))
def test_no_tenant_can_form_the_key_of_another(a: str, b: str, c: str, d: str) -> None:
    assert (key_digest(a, b) == key_digest(c, d)) == ((a, b) == (c, d))


@pytest.mark.parametrize("state", ["running", "finished", "free", "too_large"])
def test_entries_survive_the_store(state: State) -> None:
    kept = entry(state, tries=7)
    assert decode(encode(kept), key=KEY) == kept


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        b"{}",
        encode(entry())[:-1],
        encode(entry(version=2)),
        encode(entry(key=key_digest("", "neighbour"))),
        encode(entry(identity=Identity(id="evil\r\nid", created=1, seeds=(1,)))),
        encode(entry(identity=Identity(id="a" * 32, created=1, seeds=(-1,)))),
        encode(entry("finished", deltas=())),
        encode(entry(tries=0)),
    ],
    ids=[
        "empty",
        "a byte",
        "foreign",
        "cut",
        "another version",
        "another key",
        "bad id",
        "bad seed",
        "a prompt missing",
        "no try",
    ],
)
def test_values_that_cannot_be_trusted_count_as_none(raw: bytes) -> None:
    assert decode(raw, key=KEY) is None


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_no_changed_byte_is_believed(place: int, change: int) -> None:
    raw = bytearray(encode(entry("finished")))
    raw[place % len(raw)] ^= change
    assert decode(bytes(raw), key=KEY) is None


@given(st.binary(max_size=200))
def test_foreign_bytes_never_raise(raw: bytes) -> None:
    assert decode(raw, key=KEY) is None
    assert decode(encode(entry())[:16] + raw, key=KEY) is None


def test_fields_of_a_later_version_within_one_number_are_skipped() -> None:
    class Later(Entry, kw_only=True, frozen=True):
        more: int = 5

    later = Later(**msgspec.structs.asdict(entry()))
    assert decode(encode(later), key=KEY) == entry()
