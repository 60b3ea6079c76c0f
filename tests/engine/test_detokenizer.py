"""Incremental text of the real SmolLM2 tokenizer and of a SentencePiece-like one."""

import functools
import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from octavo.engine.detokenizer import Detokenizer, StopMatcher
from octavo.engine.models.checkpoint import open_checkpoint
from octavo.engine.models.resolve import resolve
from octavo.engine.request import StopParams

HARD_TEXTS = [
    "Repeat: ďábelské 👋🏽 家",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "日本語と中文、한국어 — “quotes” … ½ €",
    "👩‍👩‍👧‍👦 🇨🇿 🏴󠁧󠁢󠁥󠁮󠁧󠁿 é ﷽",
    "def f(x):\n\treturn  x\n\n\n    # end",
]


@functools.cache
def smollm2() -> Tokenizer:
    return Tokenizer.from_buffer(open_checkpoint(resolve("smollm2", "")).tokenizer_json)


@functools.cache
def byte_ids() -> dict[int, int]:
    """The token of each single byte."""
    alphabet = bytes_to_unicode()
    ids = {byte: smollm2().token_to_id(char) for byte, char in alphabet.items()}
    return {byte: token for byte, token in ids.items() if token is not None}


def bytes_to_unicode() -> dict[int, str]:
    """The printable stand-ins of GPT-2's byte-level alphabet."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


@functools.cache
def with_byte_fallback() -> Tokenizer:
    """A tokenizer that decodes as Llama 2's does; ids 0 to 255 are bytes."""
    words = ["▁Hello", "▁world", "▁", "!", "家", "<s>"]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {word: 256 + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.add_special_tokens(["<s>"])
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(
        [replace, decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    return tokenizer


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def ids_of(text: str) -> list[int]:
    return smollm2().encode(text, add_special_tokens=False).ids


def text_of(ids: Sequence[int]) -> str:
    return smollm2().decode(list(ids), skip_special_tokens=True)


@functools.cache
def prompt_ids() -> tuple[int, ...]:
    return tuple(ids_of("Once upon a time"))


def stop_at(*strings: str, include: bool = False, min_tokens: int = 0) -> StopParams:
    return StopParams(
        max_tokens=1000,
        min_tokens=min_tokens,
        stop_strings=strings,
        include_in_output=include,
    )


def start(stop: StopParams | None = None, prompt: Sequence[int] | None = None) -> Detokenizer:
    return Detokenizer(smollm2(), prompt_ids() if prompt is None else prompt, stop or stop_at())


def pieces(detokenizer: Detokenizer, ids: Sequence[int]) -> Iterator[str]:
    """Pushes ids until a stop string is found, then flushes."""
    for token in ids:
        yield detokenizer.push(token)
        if detokenizer.matched is not None:
            break
    yield detokenizer.flush()


def expected(ids: Sequence[int], stop: StopParams) -> tuple[str, str | None]:
    """The definition: decode everything, find the stop that is completed first, cut."""
    text = text_of(ids)
    # Text of the first min_tokens tokens counts as far as it is certain by then.
    untested = len(text_of(ids[: stop.min_tokens]).rstrip("\ufffd")) if stop.min_tokens else 0
    if stop.min_tokens >= len(ids):
        untested = len(text)
    found = [
        (begin + len(string), order, string)
        for order, string in enumerate(stop.stop_strings)
        for begin in range(len(text))
        if text.startswith(string, begin) and begin + len(string) > untested
    ]
    if not found:
        return text, None
    end, _, string = min(found)
    return text[: end if stop.include_in_output else end - len(string)], string


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_50_pieces_join_to_the_full_text_without_replacement_characters(text: str) -> None:
    ids = ids_of(text)
    for tokens in (ids, [byte_ids()[b] for b in text.encode() if b in byte_ids()]):
        parts = list(pieces(start(), tokens))
        assert "".join(parts) == text_of(tokens)
    assert not any("\ufffd" in part for part in pieces(start(), ids))


def test_a_character_comes_whole_and_with_its_last_byte() -> None:
    byte_tokens = [byte_ids()[b] for b in "a家👋".encode()]
    assert list(pieces(start(), byte_tokens)) == ["a", "", "", "家", "", "", "", "👋", ""]


def test_50_a_prompt_that_ends_inside_a_character_is_completed() -> None:
    head, *tail = (byte_ids()[b] for b in "家".encode())
    assert "".join(pieces(start(prompt=[*prompt_ids(), head]), [*tail, *ids_of(" x")])) == "家 x"


def test_a_replacement_character_at_the_prompts_end_is_not_repeated() -> None:
    prompt = ids_of("broken \ufffd")
    for text in ("plain", "\ufffd", "家"):
        assert "".join(pieces(start(prompt=prompt), ids_of(text))) == text


def test_50_leading_space_is_kept() -> None:
    assert start().push(ids_of(" there")[0]) == " there"


def test_an_incomplete_character_at_the_end_is_shown_once() -> None:
    detokenizer = start()
    first, second, _ = (byte_ids()[b] for b in "家".encode())
    assert detokenizer.push(first) + detokenizer.push(second) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_50_invalid_bytes_are_released_and_memory_stays_bounded() -> None:
    detokenizer = start()
    invalid = byte_ids()[0x80]
    parts = [detokenizer.push(invalid) for _ in range(500)]
    assert "".join(parts) + detokenizer.flush() == "\ufffd" * 500
    assert len("".join(parts)) >= 497
    assert len(detokenizer._stream._ids) <= 64


def test_hidden_tokens_have_no_text_and_take_no_memory() -> None:
    eos = id_of(smollm2(), "<|im_end|>")
    detokenizer = start()
    assert detokenizer.push(ids_of("end")[0]) == "end"
    first, *rest = (byte_ids()[b] for b in "家".encode())
    assert {detokenizer.push(t) for t in [*[eos] * 100, first, *[eos] * 100]} == {""}
    assert len(detokenizer._stream._ids) <= 16
    assert "".join(detokenizer.push(t) for t in rest) == "家"


def test_special_tokens_are_text_when_asked_for() -> None:
    eos = id_of(smollm2(), "<|im_end|>")
    detokenizer = Detokenizer(smollm2(), prompt_ids(), stop_at(), skip_special=False)
    assert detokenizer.push(eos) == "<|im_end|>"


@pytest.mark.parametrize("odd", [-1, 49152, 10**6, 2**32 - 1, 2**32, 5279552648203111001])
def test_50_odd_ids_have_no_text_and_do_no_harm(odd: int) -> None:
    first, second = ids_of("up down")
    assert "".join(pieces(start(), [odd, first, odd, odd, second, odd])) == "up down"


def test_invisible_tokens_are_counted_but_not_shown() -> None:
    detokenizer = start(stop_at("b", min_tokens=1))
    assert detokenizer.push(ids_of("a")[0], visible=False) == ""
    detokenizer.push(ids_of("b")[0])
    assert detokenizer.matched == "b"


# --- a decoder that reads runs of bytes as a whole and strips a leading space


@pytest.mark.parametrize("run", ["👋", "家👋é", "家" * 30], ids=["one", "mixed", "long"])
def test_byte_fallback_runs_come_by_whole_characters(run: str) -> None:
    tokenizer = with_byte_fallback()
    prompt = [id_of(tokenizer, "▁Hello")]
    detokenizer = Detokenizer(tokenizer, prompt, stop_at())
    world = id_of(tokenizer, "▁world")
    parts = list(pieces(detokenizer, [world, *run.encode(), world]))
    assert "".join(parts) == f" world{run} world"
    assert "\ufffd" not in "".join(parts)


@pytest.mark.parametrize("cut", [27, 29, 30], ids=["first byte", "last byte", "next character"])
def test_byte_fallback_prompt_may_end_inside_a_run(cut: int) -> None:
    tokenizer = with_byte_fallback()
    run = ("家" * 11).encode()
    prompt = [id_of(tokenizer, "▁Hello"), *run[:cut]]
    text = "".join(pieces(Detokenizer(tokenizer, prompt, stop_at()), run[cut:]))
    assert text == "家" * (11 - cut // 3)


def test_byte_fallback_run_that_stays_invalid_is_released() -> None:
    tokenizer = with_byte_fallback()
    detokenizer = Detokenizer(tokenizer, [id_of(tokenizer, "▁Hello")], stop_at())
    parts = [detokenizer.push(byte) for byte in [*"家".encode(), *[0xFF] * 300]]
    assert len("".join(parts)) > 200
    assert len(detokenizer._stream._ids) <= 64


def test_a_space_after_a_hidden_prompt_end_is_kept() -> None:
    tokenizer = with_byte_fallback()
    hello, special = id_of(tokenizer, "▁Hello"), id_of(tokenizer, "<s>")
    detokenizer = Detokenizer(tokenizer, [hello, *[special] * 20], stop_at())
    assert detokenizer.push(hello) == " Hello"


def test_50_a_decoder_that_changes_its_mind_does_not_stop_the_text() -> None:
    tokenizer = with_byte_fallback()
    hello = id_of(tokenizer, "▁Hello")
    detokenizer = Detokenizer(tokenizer, [hello], stop_at())
    # The invalid byte makes the whole run invalid, of which a part is out already.
    parts = list(pieces(detokenizer, [*"家".encode(), 0xFF, hello, hello]))
    assert "".join(parts).startswith("家")
    assert "".join(parts).endswith(" Hello Hello")


# --- stop strings


def test_53_nothing_of_a_stop_string_is_sent() -> None:
    detokenizer = start(stop_at("DEFGHIJ"), ids_of("Here is the English alphabet: ABC"))
    parts = list(pieces(detokenizer, [t for c in "DEFGHIJKL" for t in ids_of(c)]))
    assert "".join(parts) == ""
    assert detokenizer.matched == "DEFGHIJ"


def test_53_only_what_could_become_a_stop_is_held() -> None:
    detokenizer = start(stop_at("</stop>"))
    sent = [detokenizer.push(t) for c in "ab</sto b" for t in ids_of(c)]
    assert sent == ["a", "b", "", "", "", "", "", "</sto ", "b"]


@pytest.mark.parametrize("stop", ["</thanks>", "<think>", "unrelated"])
def test_53_a_tag_comes_whole_beside_a_stop_that_begins_like_it(stop: str) -> None:
    text = "Let me see.</think>Paris."
    for ids in (ids_of(text), [t for c in text for t in ids_of(c)]):
        assert "".join(pieces(start(stop_at(stop)), ids)) == text


def test_53_held_text_is_sent_in_the_end() -> None:
    detokenizer = start(stop_at("abcdef"))
    assert [detokenizer.push(t) for c in "xabc" for t in ids_of(c)] == ["x", "", "", ""]
    assert detokenizer.flush() == "abc"
    assert detokenizer.matched is None


@pytest.mark.parametrize(
    ("stops", "matched", "text"),
    [
        (("cd", "b"), "b", "a"),
        (("bc", "abc"), "bc", "a"),
        (("abc", "bc"), "abc", ""),
        (("abcdefgh", "d"), "d", "abc"),
    ],
    ids=["earliest end", "tie by order", "tie by order, longer first", "inside a longer one"],
)
def test_51_the_stop_that_completes_first_wins(
    stops: tuple[str, ...], matched: str, text: str
) -> None:
    for ids in (ids_of("abcd"), [t for c in "abcd" for t in ids_of(c)]):
        detokenizer = start(stop_at(*stops))
        assert "".join(pieces(detokenizer, ids)) == text
        assert detokenizer.matched == matched


def test_52_an_included_stop_ends_the_text() -> None:
    detokenizer = start(stop_at("lo", include=True))
    assert "".join(pieces(detokenizer, ids_of("Hello world"))) == "Hello"


def test_52_after_a_match_nothing_comes() -> None:
    detokenizer = start(stop_at("b"))
    text = "".join(detokenizer.push(t) for c in "abcb" for t in ids_of(c))
    assert text + detokenizer.flush() == "a"
    assert detokenizer.chars_released == 1


def test_44_stops_are_not_tested_before_min_tokens() -> None:
    ids = [t for c in "xxaxxb" for t in ids_of(c)]
    detokenizer = start(stop_at("xx", min_tokens=2))
    assert "".join(pieces(detokenizer, ids)) == "xxa"
    assert detokenizer.matched == "xx"


def test_a_stop_across_the_min_tokens_boundary_is_cut_whole() -> None:
    detokenizer = start(stop_at("abcd", min_tokens=2))
    assert "".join(pieces(detokenizer, [t for c in "xabcd" for t in ids_of(c)])) == "x"


def test_a_stop_may_begin_inside_one_that_does_not_count() -> None:
    detokenizer = start(stop_at("aa", min_tokens=2))
    assert "".join(pieces(detokenizer, ids_of("a") * 3)) == "a"
    assert detokenizer.matched == "aa"


def test_a_stop_completed_by_the_rest_is_cut() -> None:
    detokenizer = start(stop_at("\ufffd"))
    assert "".join(pieces(detokenizer, [*ids_of("a"), byte_ids()["家".encode()[0]]])) == "a"
    assert detokenizer.matched == "\ufffd"


NOISE = [*"a家👋".encode(), 0x80, 0xE5, 0xF0]
ALPHABET = "ab\n é家👋<"
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=4, unique=True)


@st.composite
def token_runs(draw: st.DrawFn) -> list[int]:
    """Text over a small alphabet, in the model's own tokens, in bytes or at random."""
    kind = draw(st.sampled_from(["text", "bytes", "random", "noise"]))
    if kind == "noise":
        noise = draw(st.binary(max_size=120).map(lambda raw: [NOISE[b % len(NOISE)] for b in raw]))
        return [byte_ids()[byte] for byte in noise]
    if kind == "random":
        return draw(st.lists(st.integers(-1, 49160), max_size=12))
    text = draw(st.text(ALPHABET, max_size=24))
    if kind == "text":
        return ids_of(text)
    return [byte_ids()[byte] for byte in text.encode()]


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
@given(
    ids=token_runs(),
    stops=STOPS,
    include=st.booleans(),
    min_tokens=st.sampled_from([0, 0, 0, 1, 3, 100]),
)
def test_53_streaming_equals_the_definition(
    ids: list[int], stops: list[str], include: bool, min_tokens: int
) -> None:
    ids = [token for token in ids if 0 <= token < 49152]
    stop = stop_at(*stops, include=include, min_tokens=min_tokens)
    detokenizer = start(stop)
    text, matched = expected(ids, stop)
    sent = ""
    for part in pieces(detokenizer, ids):
        sent += part
        assert text.startswith(sent)  # never a character that is taken back
        assert len(sent) == detokenizer.chars_released
    assert (sent, detokenizer.matched) == (text, matched)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(ids=token_runs(), stops=STOPS)
def test_resume_at_every_position_gives_the_same_text(ids: list[int], stops: list[str]) -> None:
    stop = stop_at(*stops)
    uncut = start(stop)
    whole, found = "".join(pieces(uncut, ids)), uncut.matched
    first, sent = start(stop), ""
    for position, token in enumerate(ids):
        if first.matched is None:
            # Acknowledged text may lag behind the ids, and what was shown may be ahead of them.
            for chars in {len(sent), len(sent) // 2, min(len(whole), len(sent) + 1)}:
                second = Detokenizer(
                    smollm2(), prompt_ids(), stop, output_ids=ids[:position], chars_sent=chars
                )
                rest = "".join(pieces(second, ids[position:]))
                assert whole[:chars] + rest == whole
                assert second.chars_released == len(whole)
                assert second.matched == found
        sent += first.push(token)


def test_long_texts_survive_the_moving_window() -> None:
    text = " ".join(HARD_TEXTS) * 20
    for ids in (ids_of(text), [byte_ids()[b] for b in text.encode() if b in byte_ids()]):
        assert "".join(pieces(start(), ids)) == text_of(ids)


def test_a_matcher_agrees_with_a_naive_search_on_all_short_texts() -> None:
    for stop in ("a", "aa", "ab", "aab", "aba", "abab"):
        for letters in itertools.product("ab", repeat=6):
            text = "".join(letters)
            found = text.find(stop)
            for split in range(7):
                matcher = StopMatcher(stop)
                end = matcher.feed(text[:split], counts=True) if split else None
                if end is None:
                    rest = matcher.feed(text[split:], counts=True)
                    end = None if rest is None else split + rest
                assert end == (None if found < 0 else found + len(stop))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(ids=token_runs(), begun=st.binary(max_size=3))
def test_all_at_once_is_one_by_one(ids: list[int], begun: bytes) -> None:
    prompt = [*prompt_ids(), *(byte_ids()[byte] for byte in begun if byte in byte_ids())]
    one_by_one = "".join(pieces(start(prompt=prompt), ids))
    whole = start(prompt=prompt)
    assert whole.push_all(ids) + whole.flush() == one_by_one


def test_all_at_once_completes_the_character_in_which_the_prompt_ended() -> None:
    first, *rest = [byte_ids()[byte] for byte in "家".encode()]
    assert start(prompt=[*prompt_ids(), first]).push_all(rest) == "家"
