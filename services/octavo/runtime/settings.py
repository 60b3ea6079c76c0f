"""Settings from flags, environment, file and defaults, each with its origin.

A settings class is a frozen dataclass whose fields are made by `setting`. Precedence: flag,
OCTAVO_* variable, file, default. A bad value or an unknown key stops the start with key, value and
origin. Knows no particular setting.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from octavo.v1.errors import BAD_SETTING, UNKNOWN_SETTING, OctavoError

T = TypeVar("T")

ENV_PREFIX = "OCTAVO_"
MASK = "********"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    """What the reader of `--help` and the docs learns about a setting."""

    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False


def setting(
    default: Any,
    help: str,
    *,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """Declares a field of a settings class; `help` says what it does and why the default is so."""
    doc = Doc(
        help=help, unit=unit, minimum=minimum, maximum=maximum, choices=choices, secret=secret
    )
    return dataclasses.field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A settings object and where each value came from."""

    value: T
    origins: Mapping[str, str]

    def shown(self, name: str) -> object:
        """Returns the value for display; secrets are masked."""
        value = getattr(self.value, name)
        return MASK if doc_of(type(self.value), name).secret and value else value


def doc_of(cls: type, name: str) -> Doc:
    """Returns the documentation of a field."""
    doc = cls.__dataclass_fields__[name].metadata["doc"]  # type: ignore[attr-defined]
    assert isinstance(doc, Doc)
    return doc


def names(*classes: type) -> list[str]:
    """Returns the fields of the classes in order."""
    return [f.name for cls in classes for f in dataclasses.fields(cls)]


def flag_of(name: str) -> str:
    """Returns the command-line flag of a field."""
    return "--" + name.replace("_", "-")


def env_of(name: str) -> str:
    """Returns the environment variable of a field."""
    return ENV_PREFIX + name.upper()


def load(
    cls: type[T],
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Loaded[T]:
    """Builds `cls` from its sources.

    Args:
        cls: the settings class.
        flags: values by field name as the command line gave them; None means not given.
        environ: the process environment.
        file: a TOML file with field names as keys.

    Raises:
        OctavoError: BAD_SETTING for a value outside type or range.
    """
    sources: list[tuple[str, Mapping[str, object]]] = [
        ("flag", {k: v for k, v in (flags or {}).items() if v is not None})
    ]
    env_values = {n: (environ or {})[env_of(n)] for n in names(cls) if env_of(n) in (environ or {})}
    sources.append(("env", env_values))
    sources.append(("file", read_file(file) if file else {}))
    place: dict[str, Callable[[str], str]]
    place = {"flag": flag_of, "env": env_of, "file": partial(place_in, file)}
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    hints = get_type_hints(cls)
    for name in names(cls):
        origins[name] = "default"
        for origin, source in sources:
            if name in source:
                origins[name] = f"{origin} {place[origin](name)}"
                values[name] = _convert(cls, name, source[name], hints[name], origins[name])
                break
    return Loaded(cls(**values), origins)


def read_file(file: Path) -> dict[str, object]:
    """Reads a TOML file of settings; raises BAD_SETTING when it is not one."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OctavoError(
            BAD_SETTING, key="config", value=str(file), origin="file", reason=str(error)
        ) from error


def place_in(file: Path | None, key: str) -> str:
    """Returns "FILE:LINE" of a key that a TOML file sets; without the line where none is found."""
    lines = file.read_text(encoding="utf-8").split("\n") if file else []
    assignment = re.compile(rf"""\s*(["']?){re.escape(key)}\1\s*=""")
    for count, line in enumerate(lines):
        # Within a text of several lines, what looks like the key follows on an incomplete file.
        if assignment.match(line) and _is_toml("\n".join(lines[:count])):
            return f"{file}:{count + 1}"
    return str(file)


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def reject_unknown(keys: Iterable[str], known: Sequence[str], origin: str) -> None:
    """Raises UNKNOWN_SETTING, with the nearest name, for a key that no settings class has."""
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            closest = f"; did you mean {near[0]}?" if near else ""
            raise OctavoError(UNKNOWN_SETTING, key=key, origin=origin, closest=closest)


def _convert(cls: type, name: str, raw: object, hint: Any, origin: str) -> object:
    doc = doc_of(cls, name)

    def bad(reason: str) -> OctavoError:
        value = MASK if doc.secret else raw
        return OctavoError(BAD_SETTING, key=name, value=value, origin=origin, reason=reason)

    if isinstance(raw, str) and str(hint).startswith("tuple"):
        raw = [part for part in raw.split(",") if part]
    try:
        value: object = msgspec.convert(raw, hint, strict=False)
    except msgspec.ValidationError as error:
        raise bad(str(error)) from error
    if doc.choices and value not in doc.choices:
        raise bad(f"must be one of {', '.join(doc.choices)}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if doc.minimum is not None and not value >= doc.minimum:
            raise bad(f"must be at least {doc.minimum:g}")
        if doc.maximum is not None and not value <= doc.maximum:
            raise bad(f"must be at most {doc.maximum:g}")
    return value
