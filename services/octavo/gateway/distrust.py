"""What gRPC says of a connection that fails for a certificate, in plain words. Pure.

With TLS 1.3 a client is done before the server has judged its certificate, and gRPC does not tell
what the server says then: it closes a connection on which nothing was said yet.
"""

from __future__ import annotations

import re
from typing import Final

_REFUSED: Final = "the engine does not trust the gateway's certificate"
_MEANINGS: Final = (
    ("certificate has expired", "the engine's certificate has expired"),
    ("certificate is not yet valid", "the engine's certificate is not valid yet"),
    ("CERTIFICATE_VERIFY_FAILED", "the engine's certificate is of an issuer that is not trusted"),
    ("Hostname Verification", "the engine's certificate bears another name"),
    ("WRONG_VERSION_NUMBER", "the engine has no certificate: it speaks plaintext"),
    ("handshake failed", "engine and gateway did not come to terms about their certificates"),
    ("failed to connect .*(Socket closed|reset by peer)", f"{_REFUSED}, or was just ended"),
    ("PERMISSION_DENIED", _REFUSED),
)
"""What a failure has in it, and what that means: the first that fits."""


def distrust(failure: str, problem: str) -> str:
    """Returns why engine and gateway do not trust each other; empty when something else failed.

    Args:
        failure: what gRPC says of a connection with TLS.
        problem: of the gateway's own certificate; empty when there is none.
    """
    found = next((meaning for sign, meaning in _MEANINGS if re.search(sign, failure)), "")
    if found and problem:
        return f"{found}; the gateway's certificate is of no use: {problem}"
    return found
