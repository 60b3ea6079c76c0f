from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.v1.block_hash import (
    BLOCK_TOKENS,
    BlockHash,
    digest,
    extend_chain,
    hash_block,
    hash_root,
    model_identity,
)

IDENTITY = model_identity(model="m", revision="r", tokenizer_digest=b"t", weights_version="w")
ROOT = hash_root(IDENTITY)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80)


def chain_of(tokens: list[int], root: BlockHash = ROOT) -> list[BlockHash]:
    chain: list[BlockHash] = []
    extend_chain(chain, root, tokens)
    return chain


def test_02_encoding_is_pinned() -> None:
    # Another engine's or a later version's hashes must be these, or RULE_VERSION must change.
    assert ROOT.hex() == "55eaefa90bb3f16f947f0941ee779998"
    assert hash_block(ROOT, range(16)).hex() == "1bacd169d4b550e43d6fd9a0e38ba429"
    assert (
        hash_block(ROOT, range(16), [(1, b"adapter")]).hex() == "0a7b67a30b2ac40cfe4b0abce1822f87"
    )


@given(TOKENS)
def test_01_only_full_blocks_have_a_hash(tokens: list[int]) -> None:
    chain = chain_of(tokens)
    assert len(chain) == len(tokens) // BLOCK_TOKENS
    assert all(len(h) == 16 for h in chain)


@given(TOKENS, TOKENS)
def test_01_equal_hashes_mean_equal_prefixes(a: list[int], b: list[int]) -> None:
    for i, (x, y) in enumerate(zip(chain_of(a), chain_of(b), strict=False)):
        assert (x == y) == (a[: (i + 1) * BLOCK_TOKENS] == b[: (i + 1) * BLOCK_TOKENS])


@given(TOKENS, st.data())
def test_chain_grows_to_the_same_whatever_the_steps(tokens: list[int], data: st.DataObject) -> None:
    chain: list[BlockHash] = []
    seen = 0
    while seen < len(tokens):
        seen += data.draw(st.integers(1, len(tokens) - seen))
        extend_chain(chain, ROOT, tokens[:seen])
    assert chain == chain_of(tokens)


@given(st.integers(0, 47), st.integers(0, 2**32 - 1))
def test_a_changed_token_changes_its_block_and_all_after_it(place: int, token: int) -> None:
    tokens = list(range(48))
    assume(tokens[place] != token)
    changed = [*tokens[:place], token, *tokens[place + 1 :]]
    same = [x == y for x, y in zip(chain_of(tokens), chain_of(changed), strict=True)]
    assert same == [i < place // BLOCK_TOKENS for i in range(3)]


@given(st.lists(st.binary(max_size=4)), st.lists(st.binary(max_size=4)))
def test_04_fields_cannot_run_into_one_another(a: list[bytes], b: list[bytes]) -> None:
    assert (digest(*a) == digest(*b)) == (a == b)


@pytest.mark.parametrize("changed", ["model", "revision", "tokenizer_digest", "weights_version"])
def test_03_each_part_of_the_identity_makes_another_tree(changed: str) -> None:
    def identity(**other: str) -> bytes:
        parts = {"model": "m", "revision": "r", "weights_version": "w", "tokenizer": "t"} | other
        return model_identity(
            model=parts["model"],
            revision=parts["revision"],
            weights_version=parts["weights_version"],
            tokenizer_digest=parts["tokenizer"].encode(),
        )

    name = changed.removesuffix("_digest")
    assert identity(**{name: "x"}) != identity()


def test_03_salt_is_another_tree() -> None:
    assert hash_root(IDENTITY, "tenant") != ROOT
    assert hash_root(IDENTITY, "") == ROOT


def test_04_extras_count_and_their_order_does_not() -> None:
    extras = [(1, b"a"), (2, b"b")]
    assert hash_block(ROOT, [1], extras) == hash_block(ROOT, [1], extras[::-1])
    assert len({hash_block(ROOT, [1], e) for e in ([], extras, [(1, b"b")], [(2, b"a")])}) == 4
    assert hash_block(ROOT, [1], [(1, b"ab")]) != hash_block(ROOT, [1], [(1, b"a"), (1, b"b")])
