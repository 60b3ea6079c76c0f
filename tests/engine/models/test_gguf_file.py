"""A GGUF file gives Hugging Face's tensors, and a damaged one an OctavoError and nothing else."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.models.tiny_model import HEAD_DIM, weights, write_gguf

from octavo.engine.models.checkpoint import open_checkpoint
from octavo.engine.models.llama3_rope import llama3_factors
from octavo.engine.models.resolve import resolve
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError

Type = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "Tiny-Instruct.F32.gguf")


def _refused(path: Path) -> str:
    with pytest.raises(OctavoError) as caught:
        open_checkpoint(path)
    assert caught.value.kind is MODEL_UNREADABLE
    return caught.value.message


def test_tensors_are_those_that_were_written(tiny: Path) -> None:
    checkpoint = open_checkpoint(tiny)
    wanted = weights()
    assert set(checkpoint.tensor_names()) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(checkpoint.tensor(name), tensor), name
    assert checkpoint.num_bytes == sum(t.nbytes for t in wanted.values())


def test_metadata_is_read(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template("{{ messages }}")
        writer.add_float32("general.sampling.temp", 0.7)
        writer.add_int32("general.sampling.top_k", 20)
        writer.add_eot_token_id(5)

    checkpoint = open_checkpoint(write_gguf(tmp_path / "Tiny-Q4_K_M.gguf", edit=edit))
    assert checkpoint.model_id == "Tiny"
    assert checkpoint.revision == ""
    assert checkpoint.chat_template == "{{ messages }}"
    assert checkpoint.default_sampling == {"temperature": 0.7, "top_k": 20}
    assert checkpoint.eos_token_ids == (0, 5)
    assert checkpoint.bos_token_id is None
    assert checkpoint.config.head_dim == HEAD_DIM
    assert checkpoint.config.tie_word_embeddings
    assert checkpoint.config.rms_norm_eps == 1e-5


@pytest.mark.parametrize("quantization", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q8_0, Type.BF16])
def test_quantised_tensors_equal_the_librarys(tmp_path: Path, quantization: Type) -> None:
    path = write_gguf(tmp_path / "q.gguf", quantization=quantization)
    checkpoint = open_checkpoint(path)
    for theirs in gguf.GGUFReader(path).tensors:
        if theirs.name.endswith("ffn_up.weight"):
            name = f"model.layers.{theirs.name.split('.')[1]}.mlp.up_proj.weight"
            library = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
            assert np.array_equal(checkpoint.tensor(name).float().numpy(), library)


def test_smollm2_equals_the_library() -> None:
    path = resolve("smollm2")
    checkpoint = open_checkpoint(path)
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name, gguf_name in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.29.mlp.down_proj.weight": "blk.29.ffn_down.weight",
        "model.norm.weight": "output_norm.weight",
    }.items():
        stored = theirs[gguf_name]
        library = gguf.quants.dequantize(stored.data, stored.tensor_type)
        assert np.array_equal(checkpoint.tensor(name).numpy(), library), name
    assert checkpoint.model_id == "SmolLM2-135M-Instruct"
    assert checkpoint.eos_token_ids == (2,)
    assert checkpoint.bos_token_id is None
    assert len(checkpoint.tensor_names()) == 272


def test_llama3_scaling_is_recognised_by_its_factors(tmp_path: Path) -> None:
    factors = llama3_factors(head_dim=HEAD_DIM, theta=10000.0, factor=8.0)
    path = tmp_path / "m.gguf"
    write_gguf(path, extra={"rope_freqs.weight": np.array(factors, np.float32)})
    scaling = open_checkpoint(path).config.rope_scaling
    assert scaling is not None
    assert scaling["rope_type"] == "llama3"
    assert scaling["factor"] == 8.0
    write_gguf(path, extra={"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)})
    assert "not the scaling of Llama 3.1" in _refused(path)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("llama.expert_count", 8, "mixtures of experts"),
        ("llama.attention.sliding_window", 128, "sliding_window"),
        ("llama.rope.dimension_count", 8, "differs from the head size"),
        ("split.count", 2, "split GGUF"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, key: str, value: int, reason: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", edit=lambda w: w.add_uint32(key, value))
    assert reason in _refused(path)


def test_missing_and_foreign_tensors_are_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", without="blk.1.ffn_up.weight")
    assert "tensor blk.1.ffn_up.weight is missing" in _refused(path)
    extra = {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    path = write_gguf(tmp_path / "m.gguf", extra=extra)
    assert "tensor blk.0.attn_q.bias has no place" in _refused(path)


def test_a_file_that_shrinks_later_is_an_error(tmp_path: Path, tiny: Path) -> None:
    path = Path(shutil.copy(tiny, tmp_path / "m.gguf"))
    checkpoint = open_checkpoint(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)
    with pytest.raises(OctavoError, match="it ends before tensor"):
        [checkpoint.tensor(name) for name in checkpoint.tensor_names()]


def _load(path: Path) -> None:
    """Opens and reads all; any other failure than an OctavoError passes on."""
    with contextlib.suppress(OctavoError):
        checkpoint = open_checkpoint(path)
        for name in checkpoint.tensor_names():
            checkpoint.tensor(name)


def test_every_truncation_is_an_error(tmp_path: Path, tiny: Path) -> None:
    path = tmp_path / "cut.gguf"
    data = tiny.read_bytes()
    header = len(data) - sum(t.nbytes for t in weights().values())
    path.write_bytes(data)
    for length in [*range(len(data) - 1, header, -9973), *range(header, -1, -1)]:
        with path.open("r+b") as file:
            file.truncate(length)
        _refused(path)


@settings(max_examples=400)
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6)
)
def test_changed_bytes_never_raise_anything_else(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(tiny.read_bytes())
    header = len(data) - sum(t.nbytes for t in weights().values())
    for place, value in flips:
        data[place % header] = value
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(data)
    _load(path)


@settings(max_examples=200)
@given(
    place=st.integers(0, 1 << 16),
    number=st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]),
    width=st.sampled_from([4, 8]),
)
def test_huge_numbers_allocate_nothing(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path, place: int, number: int, width: int
) -> None:
    data = bytearray(tiny.read_bytes())
    header = len(data) - sum(t.nbytes for t in weights().values())
    at = place % (header - width)
    data[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
    path = tmp_path_factory.getbasetemp() / "huge.gguf"
    path.write_bytes(data)
    _load(path)
