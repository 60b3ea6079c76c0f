from __future__ import annotations

from octavo.operator import options


def test_options_become_arguments_in_a_fixed_order() -> None:
    given = {"threads": 4, "dtype": "float32", "prefixCaching": False, "memoryFraction": 0.5}
    assert options.arguments(given) == [
        "--dtype", "float32", "--memory-fraction", "0.5", "--no-prefix-caching", "--threads", "4",
    ]  # fmt: skip


def test_a_quantity_becomes_whole_bytes() -> None:
    assert options.arguments({"kvBytes": "4Gi"}) == ["--kv-bytes", str(4 * 2**30)]
    assert options.arguments({"kvBytes": "1500m"}) == ["--kv-bytes", "2"]


def test_what_is_not_given_is_left_to_the_engine() -> None:
    assert options.arguments({}) == []
    assert options.arguments({"prefixCaching": True}) == ["--prefix-caching"]
