"""Identity of cached blocks: what a block *is*, never where it lies.

A block's hash chains the hash before it, its tokens and its extras, so equal hashes mean equal
prefixes. Every field is tagged and length-prefixed: two different inputs give different bytes, and
128 bits of blake2b (RFC 7693) make collisions a matter of breaking the hash. Engine and gateway
call these functions; nobody hashes otherwise.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NewType

BlockHash = NewType("BlockHash", bytes)

RULE_VERSION = 1
"""Changes whenever the encoding below does, so that old and new hashes never meet."""

BLOCK_TOKENS = 16
"""Tokens of a hash block; pool blocks are multiples of it."""

DIGEST_BYTES = 16

_Extra = tuple[int, bytes]
"""(tag, payload). Tags: 1 adapter digest, 2 media, 3 embeddings, 4 position scheme."""


def _fields(parts: Iterable[bytes]) -> bytes:
    """Injective encoding of a sequence of byte strings: each one behind its length."""
    return b"".join(struct.pack("<Q", len(p)) + p for p in parts)


def digest(*parts: bytes) -> bytes:
    """Returns the 16-byte blake2b digest of the length-prefixed parts."""
    return blake2b(_fields(parts), digest_size=DIGEST_BYTES).digest()


def model_identity(
    *, model: str, revision: str, tokenizer_digest: bytes, weights_version: str
) -> bytes:
    """Returns the 16-byte digest that binds a model, its tokenizer and its weights."""
    return digest(
        b"octavo.identity",
        struct.pack("<I", RULE_VERSION),
        model.encode(),
        revision.encode(),
        tokenizer_digest,
        weights_version.encode(),
    )


def hash_root(identity: bytes, cache_salt: str = "") -> BlockHash:
    """Returns the parent of a prefix's first block; another salt is another tree."""
    return BlockHash(digest(b"octavo.root", identity, cache_salt.encode()))


def hash_block(
    parent: BlockHash, tokens: Sequence[int], extras: Sequence[_Extra] = ()
) -> BlockHash:
    """Returns the hash of one full block.

    Args:
        parent: hash of the block before it, or the root.
        tokens: the block's token ids, each below 2**32.
        extras: (tag, payload) pairs, in any order.
    """
    h = blake2b(parent, digest_size=DIGEST_BYTES)
    h.update(struct.pack("<I", len(tokens)))
    h.update(array("I", tokens).tobytes())
    for tag, payload in sorted(extras):
        h.update(struct.pack("<IQ", tag, len(payload)))
        h.update(payload)
    return BlockHash(h.digest())


def extend_chain(
    chain: list[BlockHash], root: BlockHash, tokens: Sequence[int], block_tokens: int = BLOCK_TOKENS
) -> None:
    """Appends to `chain` the hashes of all full blocks of `tokens` that it does not hold yet."""
    for i in range(len(chain), len(tokens) // block_tokens):
        parent = chain[i - 1] if i else root
        chain.append(hash_block(parent, tokens[i * block_tokens : (i + 1) * block_tokens]))
