"""Errors after which a device computes nothing more for its process.

One request is not to blame for them, so none is failed: the process ends, and its requests go on
elsewhere. The exit status tells whoever restarts it whether the same device will do. The texts are
those of cudaGetErrorString (CUDA Runtime API, 6.36); torch passes them on in AcceleratorError.
"""

from __future__ import annotations

from typing import Final

from octavo.v1.errors import DEVICE_FAILED, DEVICE_LOST, OctavoError

_LOST: Final = (
    "uncorrectable ECC error",  # XID 48, 95
    "uncorrectable NVLink error",
    "no CUDA-capable device",  # XID 79: fallen off the bus
    "device(s) is/are busy or unavailable",
    "unknown error",
)


class DeviceError(OctavoError):
    """DEVICE_FAILED, or DEVICE_LOST when another process would have no more luck.

    Args:
        text: what the driver said.
    """

    def __init__(self, text: str) -> None:
        kind = DEVICE_LOST if any(words in text for words in _LOST) else DEVICE_FAILED
        super().__init__(kind, reason=text.splitlines()[0] if text else "no reason given")
