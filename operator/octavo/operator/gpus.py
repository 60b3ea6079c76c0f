"""Which resources of a container are GPUs, whatever the cluster calls them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from octavo.operator import quantity

_PART_OF_ONE: Final = re.compile("mem|core|percent|tiles")
"""In names of what schedulers that share GPUs take beside one: how much of it, not how many."""


def is_gpu(resource: str) -> bool:
    """Tells whether a resource is a GPU or a share of one.

    Network adapters have a "/" as well, and NVIDIA makes some.
    """
    vendor, slash, name = resource.partition("/")
    is_adapter = name.startswith(("hostdev", "rdma", "sriov", "mlnx"))
    return bool(slash) and ("gpu" in resource or (vendor == "nvidia.com" and not is_adapter))


def count(limits: Mapping[str, object]) -> int:
    """Returns how many GPUs and shares of GPUs a container takes: what it is given devices for."""
    amounts = {r: quantity.parse(v) or quantity.ZERO for r, v in limits.items() if is_gpu(r)}
    devices = [
        math.ceil(amount)
        for resource, amount in amounts.items()
        if not _PART_OF_ONE.search(resource.partition("/")[2])
    ]
    return sum(devices) or int(any(amounts.values()))
