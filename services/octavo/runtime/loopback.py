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


def check_exposure(host: str, *, origin: str) -> None:
    """Raises BAD_SETTING for a host that others may reach: there are no keys to keep them out.

    Args:
        host: on which the API listens.
        origin: where the setting comes from.
    """
    if not is_loopback(f"{host}:0"):
        reason = "others could use the API, which has no keys yet; --no-auth allows it"
        raise OctavoError(BAD_SETTING, key="host", value=host, origin=origin, reason=reason)


def require_loopback(address: str, *, key: str, origin: str, unless: str = "") -> None:
    """Raises BAD_SETTING for an address of an engine that other machines could reach or be.

    Args:
        address: HOST:PORT or unix:PATH.
        key: the setting that holds it.
        origin: whose setting it is.
        unless: the flag that would allow it, if there is one.
    """
    if not is_loopback(address):
        reason = "engines have no authentication: only loopback and unix sockets are allowed"
        if unless:
            reason += f"; {unless} allows others"
        raise OctavoError(BAD_SETTING, key=key, value=address, origin=origin, reason=reason)
