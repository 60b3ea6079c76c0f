"""Typed reading of foreign metadata: a config.json, GGUF keys. Knows no particular key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

MAX_JSON_BYTES = 64 * 1024 * 1024
"""Largest JSON side file; tokenizers with 250,000 tokens take about 20 MB."""


class UnreadableError(Exception):
    """Why a model cannot be used; `open_checkpoint` adds the path and makes it an OctavoError."""


def read_json(path: Path) -> dict[str, object]:
    """Reads a JSON object.

    Raises:
        UnreadableError: the file is missing, too large or not a JSON object.
        OSError: the file cannot be opened.
    """
    if not path.is_file():
        raise UnreadableError(f"{path.name} is missing")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise UnreadableError(f"{path.name} is larger than {MAX_JSON_BYTES} bytes")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{path.name} is not a JSON object: {error}") from error


@dataclass(frozen=True, slots=True)
class Fields:
    """A foreign mapping whose values are checked as they are taken; null counts as absent."""

    raw: Mapping[str, object]
    prefix: str = ""
    """Put before each name, e.g. "llama." for GGUF."""

    def __contains__(self, name: str) -> bool:
        return self.raw.get(self.prefix + name) is not None

    def get(self, name: str, default: object = None) -> object:
        """Returns the value as it is."""
        value = self.raw.get(self.prefix + name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        """Returns a whole number; without a default the field is required."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, value, "a whole number")
        if not -(2**63) <= value < 2**63:
            raise UnreadableError(f"{self.prefix}{name} has more than 64 bits")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a finite number; without a default the field is required."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        if not -1e30 < value < 1e30:
            raise UnreadableError(f"{self.prefix}{name} is not finite")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Returns true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a string; without a default the field is required."""
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def texts(self, name: str) -> list[str]:
        """Returns a list of strings, empty when the field is absent."""
        value = self.get(name, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._wrong(name, value, "a list of strings")
        return value

    def _wrong(self, name: str, value: object, wanted: str) -> UnreadableError:
        name = self.prefix + name
        if value is None:
            return UnreadableError(f"{name} is missing")
        return UnreadableError(f"{name} = {shown(value)} is not {wanted}")


def shown(value: object) -> str:
    """Returns a foreign value cut to a length that fits an error message."""
    text = ascii(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
