from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.disk_format import OVERHEAD_BYTES, DamagedBlockError, decode, encode
from octavo.v1.block_hash import BlockHash

NAMESPACE = bytes(range(16))
X, Y = BlockHash(b"x" * 16), BlockHash(b"y" * 16)


@given(st.binary(max_size=100), st.sampled_from([Y, BlockHash(b"")]))
def test_what_was_written_is_read(page: bytes, parent: BlockHash) -> None:
    data = encode(NAMESPACE, X, parent, page)
    assert len(data) == OVERHEAD_BYTES + len(page)
    assert decode(data, NAMESPACE, X, parent) == page


@given(st.data())
def test_no_flipped_bit_goes_unnoticed(data: st.DataObject) -> None:
    whole = bytearray(encode(NAMESPACE, X, Y, b"a page of forty bytes, more or less ....."))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedBlockError):
        decode(bytes(whole), NAMESPACE, X, Y)


@given(st.integers(0, OVERHEAD_BYTES + 40))
def test_no_cut_goes_unnoticed(length: int) -> None:
    whole = encode(NAMESPACE, X, Y, b"p" * 41)
    with pytest.raises(DamagedBlockError):
        decode(whole[:length], NAMESPACE, X, Y)


@pytest.mark.parametrize(
    ("namespace", "hash_", "parent"),
    [(b"other".ljust(16), X, Y), (NAMESPACE, Y, Y), (NAMESPACE, X, X), (NAMESPACE, X, b"")],
    ids=["of another model", "another block", "another parent", "no parent"],
)
def test_another_block_is_not_taken_for_this_one(
    namespace: bytes, hash_: BlockHash, parent: bytes
) -> None:
    data = encode(NAMESPACE, X, Y, b"page")
    with pytest.raises(DamagedBlockError, match="another"):
        decode(data, namespace, hash_, BlockHash(parent))
