"""HOST:PORT, as settings say where to listen."""

from __future__ import annotations

from octavo.v1.errors import BAD_SETTING, OctavoError


def listen_address(
    value: str, *, key: str, origin: str, may_lack_host: bool = False
) -> tuple[str, int]:
    """Splits HOST:PORT; an address of the sixth version has brackets.

    Args:
        value: of the setting.
        key: its name.
        origin: whose setting it is.
        may_lack_host: whether :PORT will do; the host is empty then and stands for all.

    Raises:
        OctavoError: BAD_SETTING for anything else.
    """
    host, colon, port = value.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) < 1 << 16
    if not (is_port and colon) or not (host or may_lack_host):
        raise OctavoError(
            BAD_SETTING, key=key, value=value, origin=origin, reason="is not HOST:PORT"
        )
    return host.strip("[]"), int(port)
