"""Each claim of a GGUF header is checked before it is believed; these headers are hand-made."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from octavo.engine.models.fields import UnreadableError
from octavo.engine.models.gguf_header import GgufHeader, read_header

U8, BOOL, STRING, ARRAY, U32, I64 = 0, 7, 8, 9, 4, 11
HUGE = 2**63


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _key(name: bytes, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _array(kind: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + items


def _tensor(
    name: bytes = b"t", sizes: tuple[int, ...] = (32, 2), kind: int = 0, offset: int = 0
) -> bytes:
    dimensions = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return _text(name) + dimensions + struct.pack("<IQ", kind, offset)


def _header(
    *, keys: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), version: int = 3
) -> bytes:
    counts = struct.pack("<IQQ", version, len(tensors), len(keys))
    return b"GGUF" + counts + b"".join(keys) + b"".join(tensors)


def _read(path: Path, data: bytes) -> GgufHeader:
    file = path / "m.gguf"
    file.write_bytes(data)
    return read_header(file)


def _padded(header: bytes, data_bytes: int, alignment: int = 32) -> bytes:
    return header + bytes(-len(header) % alignment) + bytes(data_bytes)


def test_values_of_all_kinds_are_read(tmp_path: Path) -> None:
    keys = (
        _key(b"byte", U8, b"\xff"),
        _key(b"yes", BOOL, b"\x01"),
        _key(b"text", STRING, _text("é".encode())),
        _key(b"long", I64, struct.pack("<q", -5)),
        _key(b"texts", ARRAY, _array(STRING, 2, _text(b"a") + _text(b""))),
        _key(b"numbers", ARRAY, _array(U32, 3, struct.pack("<3I", 1, 2, 3))),
        _key(b"none", ARRAY, _array(U32, 0, b"")),
    )
    assert _read(tmp_path, _header(keys=keys)).metadata == {
        "byte": 255,
        "yes": True,
        "text": "é",
        "long": -5,
        "texts": ["a", ""],
        "numbers": [1, 2, 3],
        "none": [],
    }


def test_tensors_are_placed_behind_the_aligned_header(tmp_path: Path) -> None:
    keys = (_key(b"general.alignment", U32, struct.pack("<I", 64)),)
    tensors = (_tensor(b"b", (32, 2), offset=64), _tensor(b"a", (8,)))
    header = _header(keys=keys, tensors=tensors)
    found = _read(tmp_path, _padded(header, 64 + 256, 64)).tensors
    start = -(-len(header) // 64) * 64
    assert (found["a"].offset, found["a"].num_bytes, found["a"].shape) == (start, 32, (8,))
    assert (found["b"].offset, found["b"].num_bytes, found["b"].shape) == (start + 64, 256, (2, 32))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the header ends at byte 0"),
        (b"GGML" + bytes(20), "does not begin with GGUF"),
        (_header(version=1), "GGUF version 1"),
        (_header(version=3 << 24), "GGUF version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), f"claims {HUGE} tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), f"claims {HUGE} keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "claims 1 keys"),
        (_header(keys=(struct.pack("<Q", HUGE) + bytes(16),)), "bytes of text"),
        (_header(keys=(struct.pack("<Q", 17) + bytes(16),)), "claims 17 bytes of text"),
        (_header(keys=(_key(b"\xff", U8, b"\0"),)), "is not UTF-8"),
        (_header(keys=(_key(b"a", U8, b"\0"), _key(b"a", U8, b"\0"))), "'a' occurs twice"),
        (_header(keys=(_key(b"a", 99, bytes(9)),)), "value type 99"),
        (_header(keys=(_key(b"a", BOOL, b"\x02"),)), "neither 0 nor 1"),
        (_header(keys=(_key(b"a", ARRAY, _array(U32, HUGE, b"")),)), f"claims {HUGE} numbers"),
        (_header(keys=(_key(b"a", ARRAY, _array(U32, 3, bytes(11))),)), "the header ends"),
        (_header(keys=(_key(b"a", ARRAY, _array(STRING, 9, bytes(64))),)), "claims 9 strings"),
        (_header(keys=(_key(b"a", ARRAY, _array(ARRAY, 1, bytes(64))),)), "value type 9"),
        (_header(tensors=(_tensor(sizes=()),)), "has 0 dimensions"),
        (_header(tensors=(_tensor(sizes=(1,) * 5),)), "has 5 dimensions"),
        (_header(tensors=(_tensor(kind=999),)), "of the unknown type 999"),
        (_header(tensors=(_tensor(sizes=(33,), kind=2),)), "no whole blocks of 32"),
        (_header(tensors=(_tensor(sizes=(0, 4)),)), "no whole blocks"),
        # products beyond 64 bits: 2^32 * 2^32 numbers must not wrap to zero
        (_padded(_header(tensors=(_tensor(sizes=(2**32, 2**32)),)), 64), f"at byte {2**66 + 96}"),
        (_padded(_header(tensors=(_tensor(offset=2**64 - 32),)), 64), "ends at byte"),
        (_padded(_header(tensors=(_tensor(),)), 255), "ends at byte 352 of 351"),
        (_padded(_header(tensors=(_tensor(), _tensor(offset=256))), 512), "'t' occurs twice"),
        (
            _padded(_header(tensors=(_tensor(b"a"), _tensor(b"b", offset=128))), 512),
            "'b' overlaps the one before",
        ),
        (
            _header(keys=(_key(b"general.alignment", U32, struct.pack("<I", 24)),)),
            "general.alignment = 24 is not a power of two",
        ),
        (
            _header(keys=(_key(b"general.alignment", STRING, _text(b"x")),)),
            "general.alignment = 'x' is not",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_claim_that_does_not_fit_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    tracemalloc.start()
    with pytest.raises(UnreadableError) as caught:
        _read(tmp_path, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason in str(caught.value)
    assert peak < 1 << 20, "no claim of the file decides an allocation"
