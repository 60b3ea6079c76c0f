"""Which files of a repository the engine opens, and so which are loaded. Does no I/O.

Only whole names are taken, never parts of paths: what is not a plain name of this list stays where
it is, pickles and code among it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import msgspec

INDEX: Final = "model.safetensors.index.json"
"""Says which safetensors files make up the weights; loaded first."""
MAX_INDEX_BYTES: Final = 64 << 20

_REQUIRED: Final = ("config.json", "tokenizer.json")
_OPTIONAL: Final = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_SAFETENSORS: Final = re.compile(r"\w[\w.-]{0,200}\.safetensors", re.ASCII)
_GGUF: Final = re.compile(r"\w[\w.+-]{0,250}\.gguf", re.ASCII)
_PICKLES: Final = (".bin", ".pt", ".pth")


class UnusableError(Exception):
    """Why the engine could not open what would be loaded, in one line."""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def wants_index(names: Collection[str], file: str) -> bool:
    """Whether `select` needs the content of the index."""
    return not file and INDEX in names


def select(names: Collection[str], *, file: str = "", index: bytes = b"") -> tuple[str, ...]:
    """Returns the names to load, in order.

    Args:
        names: what the source has.
        file: the one GGUF file that was asked for, if one was.
        index: content of INDEX, if it is among the names.

    Raises:
        UnusableError: there is nothing for the engine.
    """
    if file:
        if file not in names:
            raise UnusableError(f"it has no file {file}{_offered(names)}")
        return (file,)
    weights = _weights(names, index)
    if weights:
        for name in _REQUIRED:
            if name not in names:
                raise UnusableError(f"{name} is missing")
        side = [name for name in (*_REQUIRED, *_OPTIONAL, INDEX) if name in names]
        return tuple(sorted([*side, *weights]))
    ggufs = sorted(filter(_GGUF.fullmatch, names))
    if len(ggufs) == 1:
        return tuple(ggufs)
    if ggufs:
        raise UnusableError(f"it has {len(ggufs)} GGUF files: name one behind it{_offered(names)}")
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    if pickles:
        raise UnusableError("its weights are pickles, which are never opened")
    raise UnusableError("it has neither safetensors nor GGUF")


def _weights(names: Collection[str], index: bytes) -> list[str]:
    """Returns the safetensors files as the engine chooses them; none if there are none."""
    found = sorted(filter(_SAFETENSORS.fullmatch, names))
    if INDEX in names:
        try:
            named = sorted(set(msgspec.json.decode(index, type=_Index).weight_map.values()))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise UnusableError(f"{INDEX} cannot be read: {error}") from error
        if not named:
            raise UnusableError(f"{INDEX} names no file")
        for name in named:
            if name not in found:
                raise UnusableError(f"{INDEX} names {ascii(name)[:60]}, which is not beside it")
        return named
    if "model.safetensors" in found:
        return ["model.safetensors"]
    if len(found) > 1:
        raise UnusableError(f"it has {len(found)} safetensors files and no {INDEX}")
    return found


def _offered(names: Collection[str]) -> str:
    ggufs = sorted(filter(_GGUF.fullmatch, names))
    return f"; there are {', '.join(ggufs[:8])}{', …' if len(ggufs) > 8 else ''}" if ggufs else ""
