from __future__ import annotations

import pytest

from octavo.operator import gpus


@pytest.mark.parametrize(
    ("limits", "number"),
    [
        ({"nvidia.com/gpu": 2, "memory": "8Gi"}, 2),
        ({"nvidia.com/gpu.shared": "1"}, 1),
        ({"nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-1g.10gb.me": 2}, 3),
        ({"gpu.intel.com/i915": 1}, 1),
        ({"nvidia.com/gpu": 0}, 0),
        ({"rdma/hca": 1, "nvidia.com/hostdev": 1}, 0),
        ({}, 0),
    ],
    ids=str,
)
def test_gpus_are_counted_whatever_they_are_called(limits: dict[str, object], number: int) -> None:
    assert gpus.count(limits) == number


@pytest.mark.parametrize(
    ("limits", "number"),
    [
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, 2),
        ({"gpu.intel.com/xe": 1, "gpu.intel.com/memory.max": "8Gi"}, 1),
        ({"gpu.intel.com/millicores": 500}, 1),
        ({"aliyun.com/gpu-mem": 4}, 1),
        ({"aliyun.com/gpu-mem": 0}, 0),
    ],
    ids=str,
)
def test_how_much_of_a_gpu_is_taken_is_no_number_of_gpus(
    limits: dict[str, object], number: int
) -> None:
    assert gpus.count(limits) == number
