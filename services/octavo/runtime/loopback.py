"""Which addresses only this machine can reach: the one rule for engines and whoever calls them."""

from __future__ import annotations

import ipaddress

from octavo.v1.errors import BAD_SETTING, OctavoError


def is_loopback(address: str) -> bool:
    """Returns whether HOST:PORT or unix:PATH stays on this machine."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name: what it resolves to may change
        return False


def require_loopback(address: str, *, key: str, origin: str) -> None:
    """Raises BAD_SETTING for an address of an engine that other machines could reach or be.

    Args:
        address: HOST:PORT or unix:PATH.
        key: the setting that holds it.
        origin: whose setting it is.
    """
    if not is_loopback(address):
        raise OctavoError(
            BAD_SETTING,
            key=key,
            value=address,
            origin=origin,
            reason="engines have no authentication: only loopback and unix sockets are allowed",
        )
