"""The header of a GGUF file, read with every count, length, offset and size checked first.

Nothing is allocated by a number from the file before that number is known to fit the file and our
own limits; sizes are products of Python integers. Knows no key, no tensor name and no quantisation
beyond its block size.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from octavo.engine.models.fields import UnreadableError, shown

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_HEADER_BYTES: Final = 256 * 1024 * 1024
MAX_STRING_BYTES: Final = 16 * 1024 * 1024
MAX_ARRAY_ITEMS: Final = 1 << 22
MAX_KEYS: Final = 1 << 14
MAX_TENSORS: Final = 1 << 16
MAX_DIMENSIONS: Final = 4
MAX_ALIGNMENT: Final = 1 << 16

_SCALARS: Final = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where a tensor lies in the file and how it is stored."""

    name: str
    shape: tuple[int, ...]
    """Outermost first, as torch counts; the file has it reversed."""
    quantization: GGMLQuantizationType
    offset: int
    """From the start of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """All that precedes the tensors' data."""

    metadata: dict[str, object]
    """bool, int, float, str or a list of one of them."""
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> GgufHeader:
    """Reads and checks the header.

    Raises:
        UnreadableError: the file is no GGUF, or something in it does not fit.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        cursor = _Cursor(file, min(size, MAX_HEADER_BYTES))
        if cursor.take(4) != MAGIC:
            raise UnreadableError("it does not begin with GGUF")
        version = cursor.u32()
        if version not in VERSIONS:
            raise UnreadableError(f"GGUF version {version}; known: 2 and 3, little-endian")
        num_tensors = cursor.count(MAX_TENSORS, "tensors", least_bytes=24)
        num_keys = cursor.count(MAX_KEYS, "keys", least_bytes=13)
        metadata: dict[str, object] = {}
        for _ in range(num_keys):
            key = cursor.string()
            if key in metadata:
                raise UnreadableError(f"key {shown(key)} occurs twice")
            metadata[key] = cursor.value(cursor.u32())
        infos = [_tensor_info(cursor) for _ in range(num_tensors)]
        start = _aligned(cursor.position, _alignment(metadata))
        return GgufHeader(metadata=metadata, tensors=_placed(infos, start, size))


class _Cursor:
    """A position in the header that never passes its end."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._limit = limit
        self.position = 0

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > self._limit - self.position:
            raise UnreadableError(f"the header ends at byte {self._limit}, before its content does")
        data = self._file.read(num_bytes)
        if len(data) != num_bytes:
            raise UnreadableError("the file became shorter while it was read")
        self.position += num_bytes
        return data

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def count(self, maximum: int, what: str, *, least_bytes: int) -> int:
        """Returns a count of things that take `least_bytes` each at least."""
        number = self.u64()
        if number > maximum or number * least_bytes > self._limit - self.position:
            raise UnreadableError(f"the header claims {number} {what}, more than it can hold")
        return number

    def string(self) -> str:
        data = self.take(self.count(MAX_STRING_BYTES, "bytes of text", least_bytes=1))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise UnreadableError(f"text before byte {self.position} is not UTF-8") from error

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self._scalars(kind, 1)[0]
        kind = self.u32()
        if kind == _STRING:
            number = self.count(MAX_ARRAY_ITEMS, "strings", least_bytes=8)
            return [self.string() for _ in range(number)]
        return self._scalars(kind, self.count(MAX_ARRAY_ITEMS, "numbers", least_bytes=1))

    def _scalars(self, kind: int, number: int) -> list[object]:
        if kind not in _SCALARS:
            raise UnreadableError(f"value type {kind} before byte {self.position} is unknown")
        dtype = np.dtype(_SCALARS[kind])
        data = self.take(number * dtype.itemsize)
        if kind == _BOOL and data.strip(b"\0\1"):
            raise UnreadableError(f"a truth value before byte {self.position} is neither 0 nor 1")
        values: list[object] = np.frombuffer(data, dtype).tolist()
        return values


def _tensor_info(cursor: _Cursor) -> TensorInfo:
    name = cursor.string()
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise UnreadableError(f"tensor {shown(name)} has {num_dimensions} dimensions")
    sizes = struct.unpack(f"<{num_dimensions}Q", cursor.take(8 * num_dimensions))
    number = cursor.u32()
    try:
        quantization = GGMLQuantizationType(number)
    except ValueError as error:
        raise UnreadableError(f"tensor {shown(name)} is of the unknown type {number}") from error
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    if 0 in sizes or sizes[0] % block:
        raise UnreadableError(f"tensor {shown(name)} has no whole blocks of {block} in a row")
    return TensorInfo(
        name=name,
        shape=tuple(reversed(sizes)),
        quantization=quantization,
        offset=cursor.u64(),
        num_bytes=math.prod(sizes) // block * block_bytes,
    )


def _alignment(metadata: dict[str, object]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if (
        not isinstance(alignment, int)
        or not 1 <= alignment <= MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise UnreadableError(f"general.alignment = {shown(alignment)} is not a power of two")
    return alignment


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _placed(infos: list[TensorInfo], start: int, size: int) -> dict[str, TensorInfo]:
    """Returns the tensors by name with absolute offsets, all inside the file and apart."""
    placed: dict[str, TensorInfo] = {}
    end = start
    for info in sorted(infos, key=lambda info: info.offset):
        offset = start + info.offset
        if info.name in placed:
            raise UnreadableError(f"tensor {shown(info.name)} occurs twice")
        if offset < end:
            raise UnreadableError(f"tensor {shown(info.name)} overlaps the one before it")
        end = offset + info.num_bytes
        if end > size:
            raise UnreadableError(f"tensor {shown(info.name)} ends at byte {end} of {size}")
        placed[info.name] = TensorInfo(
            name=info.name,
            shape=info.shape,
            quantization=info.quantization,
            offset=offset,
            num_bytes=info.num_bytes,
        )
    return placed
