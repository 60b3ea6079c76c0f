"""Secrets of the environment, as they go into headers. They are never shown, even wrong ones.

Files and `echo` end with a newline, and so do the Secrets that are made of their output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from octavo.runtime.settings import MASK
from octavo.v1.errors import BAD_SETTING, OctavoError

_SENDABLE: Final = re.compile(r"[!-~]*", re.ASCII)


def stripped(environ: Mapping[str, str], name: str) -> str:
    """Returns a secret without the white space around it; empty where there is none."""
    return environ.get(name, "").strip()


def header(environ: Mapping[str, str], name: str) -> str:
    """Returns a secret that becomes part of a header, without the white space around it.

    Raises:
        OctavoError: BAD_SETTING for one with characters that no token has.
    """
    value = stripped(environ, name)
    if not _SENDABLE.fullmatch(value):
        reason = "has white space, control characters or characters beyond ASCII in it"
        raise OctavoError(BAD_SETTING, key=name, value=MASK, origin="environment", reason=reason)
    return value
