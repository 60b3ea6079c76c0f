"""What an HTTP client's error may say in logs, messages and conditions.

A client that cannot send a header repeats it whole, and headers hold secrets. Knows no client: each
has a class of that name.
"""

from __future__ import annotations

from typing import Final

_UNSENDABLE: Final = "LocalProtocolError"


def text_of(error: BaseException) -> str:
    """Returns the words of an error, its name where it has none, and never a header of ours."""
    name = type(error).__name__
    if name == _UNSENDABLE:
        return "a header of the request has characters that cannot be sent"
    return str(error) or name
