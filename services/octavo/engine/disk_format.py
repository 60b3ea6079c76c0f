"""One block as a file: a header that says what it is, the page, and a checksum over both.

The checksum is blake2b (RFC 7693): 32 bits would let a torn write through once in a while, and a
wrong page is a wrong answer that nobody notices. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

from octavo.v1.block_hash import DIGEST_BYTES, BlockHash

_MAGIC: Final = b"octavoKV"
_VERSION: Final = 1
_CHECKSUM_BYTES: Final = 32
_HEADER: Final = struct.Struct(f"<8sI{DIGEST_BYTES}s{DIGEST_BYTES}s{DIGEST_BYTES}sQ")
"""Magic, version, KV namespace, hash, parent (zeros for none), bytes of the page."""

OVERHEAD_BYTES: Final = _HEADER.size + _CHECKSUM_BYTES
"""What a file is longer than its page."""


class DamagedBlockError(Exception):
    """A file is not the whole and unchanged block that it should be."""


def encode(namespace: bytes, hash_: BlockHash, parent: BlockHash, page: bytes) -> bytes:
    """Returns the content of a block's file.

    Args:
        namespace: 16 bytes that tell model, type and layout of the page.
        hash_: the block.
        parent: the block before it, empty for none.
        page: K and V of all layers.
    """
    header = _HEADER.pack(_MAGIC, _VERSION, namespace, hash_, parent, len(page))
    return header + _checksum(header, page) + page


def decode(data: bytes, namespace: bytes, hash_: BlockHash, parent: BlockHash) -> bytes:
    """Returns the page of a block's file; raises DamagedBlockError unless all of it is right."""
    if len(data) < OVERHEAD_BYTES:
        raise DamagedBlockError(f"{len(data)} bytes are no block")
    header, page = data[: _HEADER.size], data[OVERHEAD_BYTES:]
    if header != _HEADER.pack(_MAGIC, _VERSION, namespace, hash_, parent, len(page)):
        raise DamagedBlockError("it is another block, of another model, or cut off")
    if data[_HEADER.size : OVERHEAD_BYTES] != _checksum(header, page):
        raise DamagedBlockError("its checksum is wrong")
    return page


def _checksum(header: bytes, page: bytes) -> bytes:
    digest = blake2b(header, digest_size=_CHECKSUM_BYTES)
    digest.update(page)
    return digest.digest()
