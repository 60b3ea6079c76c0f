from __future__ import annotations

import pytest
from bench.workloads import BY_NAME, Words, latency, mixed, shared_prefix, throughput
from tests.bench.vocabulary import word_tokenizer
from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return word_tokenizer()


@pytest.fixture(scope="module")
def words(tokenizer: Tokenizer) -> Words:
    return Words(tokenizer.to_str().encode())


@pytest.mark.parametrize("name", BY_NAME)
def test_text_of_every_prompt_is_tokenised_to_its_ids(
    name: str, words: Words, tokenizer: Tokenizer
) -> None:
    for item in BY_NAME[name](words, "salt").items:
        assert tokenizer.encode(item.prompt.text).ids == list(item.prompt.ids)


@pytest.mark.parametrize("name", BY_NAME)
def test_same_salt_gives_the_same_workload(name: str, words: Words) -> None:
    assert BY_NAME[name](words, "a") == BY_NAME[name](words, "a")


@pytest.mark.parametrize("name", BY_NAME)
def test_another_salt_changes_words_only(name: str, words: Words) -> None:
    one, other = BY_NAME[name](words, "a"), BY_NAME[name](words, "b")
    for left, right in zip(one.items, other.items, strict=True):
        assert left.prompt.ids[:16] != right.prompt.ids[:16]
        assert len(left.prompt.ids) == len(right.prompt.ids)
        assert left.max_tokens == right.max_tokens
        assert left.arrival_s == right.arrival_s


def test_workloads_have_their_documented_sizes(words: Words) -> None:
    for workload, count, concurrency in ((latency, 4, 1), (throughput, 64, 32)):
        made = workload(words, "s")
        assert made.concurrency == concurrency
        assert [(len(i.prompt.ids), i.max_tokens) for i in made.items] == [(128, 128)] * count
    shared = shared_prefix(words, "s")
    assert shared.concurrency == 32
    assert len({item.prompt.ids[:1024] for item in shared.items}) == 1
    assert len({item.prompt.ids[1024:] for item in shared.items}) == 64
    assert {(len(item.prompt.ids), item.max_tokens) for item in shared.items} == {(1088, 32)}


def test_mixed_spans_its_lengths_and_arrives_at_about_its_rate(words: Words) -> None:
    made = mixed(words, "s", rate=1.5)
    assert made.concurrency is None
    assert len(made.items) == 48
    assert all(16 <= len(item.prompt.ids) <= 1500 for item in made.items)
    assert all(8 <= item.max_tokens <= 256 for item in made.items)
    arrivals = [item.arrival_s for item in made.items]
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    assert 1.2 < 47 / arrivals[-1] < 1.8


def test_limit_keeps_the_first_requests(words: Words) -> None:
    whole = throughput(words, "s")
    assert whole.first(3).items == whole.items[:3]
    assert whole.first(0) == whole


def test_vocabulary_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="no single-word tokens"):
        Words(word_tokenizer(words=()).to_str().encode())
