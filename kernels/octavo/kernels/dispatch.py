"""Which implementation of an operation runs: the native one where it exists, else the reference."""

from __future__ import annotations

from typing import Literal

import torch

from octavo.kernels import native

Implementation = Literal["reference", "native"]


def use_native(x: torch.Tensor, force: Implementation | None) -> bool:
    """Returns whether native CPU code computes an operation on x.

    Args:
        x: any tensor of the operation; its device decides.
        force: an implementation that is taken whatever the machine has; for tests.
    """
    if force is not None:
        return force == "native"
    return x.device.type == "cpu" and native.library() is not None
