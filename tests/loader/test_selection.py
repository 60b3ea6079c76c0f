"""Only what the engine opens is loaded, by plain names."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loader.loading import INDEX, SHARDS, repository, wanted

from octavo.loader.selection import UnusableError, select, wants_index

BASE = ("config.json", "tokenizer.json")


def index(*files: object) -> bytes:
    return json.dumps({"weight_map": {str(i): file for i, file in enumerate(files)}}).encode()


def test_neither_code_nor_pickles_nor_second_copies_are_taken() -> None:
    files = repository()
    assert wants_index(files, "")
    assert set(select(files, index=files[INDEX])) == wanted(files).keys()


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors", "other.safetensors"], ["model.safetensors"]),
        (["weights.safetensors"], ["weights.safetensors"]),
        (["weights.safetensors", "tiny.gguf"], ["weights.safetensors"]),
        (["x/model.safetensors", "a.safetensors"], ["a.safetensors"]),
    ],
)
def test_weights_without_an_index(names: list[str], chosen: list[str]) -> None:
    assert sorted(select([*BASE, *names])) == sorted([*BASE, *chosen])


def test_a_single_gguf_is_the_model() -> None:
    assert select(["tiny.Q4_0.gguf", "README.md", "config.json"]) == ("tiny.Q4_0.gguf",)


def test_one_gguf_can_be_named() -> None:
    names = ["a.Q4_0.gguf", "a.Q8_0.gguf", INDEX, *BASE, *SHARDS]
    assert not wants_index(names, "a.Q8_0.gguf")
    assert select(names, file="a.Q8_0.gguf") == ("a.Q8_0.gguf",)


@pytest.mark.parametrize(
    ("names", "content", "reason"),
    [
        ([], b"", "neither safetensors nor GGUF"),
        (["pytorch_model.bin"], b"", "pickles, which are never opened"),
        (["a.gguf", "b.gguf"], b"", "2 GGUF files: name one behind it; there are a.gguf, b.gguf"),
        (["a.safetensors", "b.safetensors"], b"", "2 safetensors files and no model.safet"),
        ([INDEX, "a.safetensors"], b"{}", "cannot be read"),
        ([INDEX, "a.safetensors"], b"[" * 100_000, "cannot be read"),
        ([INDEX, "a.safetensors"], b"\xff", "cannot be read"),
        ([INDEX, "a.safetensors"], index(), "names no file"),
        ([INDEX, "a.safetensors"], index("b.safetensors"), "names 'b.safetensors', which is not"),
        ([INDEX, "../a.safetensors"], index("../a.safetensors"), "which is not beside it"),
        ([INDEX, "pytorch_model.bin"], index("pytorch_model.bin"), "which is not beside it"),
        ([INDEX, "a.safetensors"], index(7), "cannot be read"),
    ],
)
def test_what_the_engine_could_not_open_is_refused_before_it_is_loaded(
    names: list[str], content: bytes, reason: str
) -> None:
    with pytest.raises(UnusableError, match=re.escape(reason)) as caught:
        select([*BASE, *names], index=content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", BASE)
def test_what_the_weights_need_has_to_be_there(missing: str) -> None:
    names = [name for name in (*BASE, "model.safetensors") if name != missing]
    with pytest.raises(UnusableError, match=f"{missing} is missing"):
        select(names)


def test_a_file_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(UnusableError, match=r"no file b.gguf; there are a.gguf"):
        select(["a.gguf", "b.bin"], file="b.gguf")


PARTS = ["..", "/", "\\", "\0", "a", "model", ".", "config.json", ".safetensors", ".gguf", "\n"]


@given(
    st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("".join), max_size=8),
    st.booleans(),
)
def test_no_name_leads_out_of_the_folder(names: list[str], with_index: bool) -> None:
    names = [*names, *BASE, *([INDEX] if with_index else [])]
    try:
        chosen = select(names, index=index(*names))
    except UnusableError:
        return
    assert set(chosen) <= set(names)
    for name in chosen:
        assert re.fullmatch(r"\w[\w.+-]*", name, re.ASCII), name
