"""A Hugging Face folder gives its tensors and settings; whatever is wrong with it is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.engine.models.tiny_model import weights, write_folder

from octavo.engine.models.checkpoint import open_checkpoint
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError


def _refused(path: Path) -> str:
    with pytest.raises(OctavoError) as caught:
        open_checkpoint(path)
    assert caught.value.kind is MODEL_UNREADABLE
    assert str(path) in caught.value.message
    return caught.value.message


def _write(path: Path, name: str, content: object) -> None:
    (path / name).write_text(json.dumps(content))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_are_those_that_were_written(
    tmp_path: Path, dtype: torch.dtype, shards: int
) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path, dtype=dtype, shards=shards))
    wanted = {name: tensor.to(dtype) for name, tensor in weights().items()}
    assert set(checkpoint.tensor_names()) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(checkpoint.tensor(name), tensor), name
    assert checkpoint.num_bytes == sum(t.nbytes for t in wanted.values())
    assert checkpoint.model_id == tmp_path.name
    assert checkpoint.revision == ""


def test_tied_head_and_foreign_tensors_are_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path)
    more = {**weights(), "lm_head.weight": torch.zeros(267, 64), "rotary.inv_freq": torch.ones(8)}
    save_file(more, tmp_path / "model.safetensors")
    assert set(open_checkpoint(tmp_path).tensor_names()) == set(weights())


def test_side_files_are_read(tmp_path: Path) -> None:
    write_folder(tmp_path)
    _write(
        tmp_path,
        "generation_config.json",
        {"eos_token_id": [0, 5, 0], "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": None},
    )
    _write(tmp_path, "tokenizer_config.json", {"chat_template": "A", "add_bos_token": True})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.eos_token_ids == (0, 5)
    assert checkpoint.bos_token_id == 1
    assert checkpoint.default_sampling == {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    assert checkpoint.chat_template == "A"
    assert checkpoint.tokenizer_json == (tmp_path / "tokenizer.json").read_bytes()


def test_a_folder_without_side_files_has_modest_defaults(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path))
    assert checkpoint.eos_token_ids == (0,)
    assert checkpoint.bos_token_id is None
    assert checkpoint.default_sampling == {}
    assert checkpoint.chat_template == ""


def test_a_template_file_wins_and_of_several_the_default_one(tmp_path: Path) -> None:
    write_folder(tmp_path)
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    _write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert open_checkpoint(tmp_path).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("J")
    assert open_checkpoint(tmp_path).chat_template == "J"


def test_bos_follows_the_tokenizers_own_template(tmp_path: Path) -> None:
    write_folder(tmp_path)
    token = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [token, {"Sequence": {"id": "A"}}]}
    byte_level = {"type": "ByteLevel", "trim_offsets": True}
    sequence = {"type": "Sequence", "processors": [byte_level, template]}
    for processor in (template, sequence):
        _write(tmp_path, "tokenizer.json", {"post_processor": processor})
        assert open_checkpoint(tmp_path).bos_token_id == 1
    _write(tmp_path, "tokenizer.json", {"post_processor": byte_level})
    assert open_checkpoint(tmp_path).bos_token_id is None


def test_a_hub_snapshot_knows_its_name_and_commit(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--some-org--Tiny-1B.v2" / "snapshots" / commit
    checkpoint = open_checkpoint(write_folder(folder))
    assert checkpoint.model_id == "some-org/Tiny-1B.v2"
    assert checkpoint.revision == commit


def test_weights_version_names_content(tmp_path: Path) -> None:
    one = open_checkpoint(write_folder(tmp_path / "a")).weights_version
    assert open_checkpoint(write_folder(tmp_path / "b")).weights_version == one
    other = write_folder(tmp_path / "c", config={"rope_theta": 5e5})
    assert open_checkpoint(other).weights_version != one
    assert open_checkpoint(write_folder(tmp_path / "d", shards=2)).weights_version != one


def _only_pickles(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def _truncate(path: Path) -> None:
    with (path / "model.safetensors").open("r+b") as file:
        file.truncate(5000)


def _edit_index(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        write_folder(path, shards=2)
        (path / "model.safetensors").unlink()
        index = json.loads((path / "model.safetensors.index.json").read_text())
        change(index["weight_map"])
        _write(path, "model.safetensors.index.json", index)

    return edit


def _remove_shard(path: Path) -> None:
    _edit_index(lambda _: None)(path)
    (path / "model-00002.safetensors").unlink()


def _retype(path: Path) -> None:
    eights = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in weights().items()}
    save_file(eights, path / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_only_pickles, "its weights are pickles (pytorch_model.bin), which are never opened"),
        (_truncate, "model.safetensors is damaged"),
        (lambda p: (p / "model.safetensors").write_bytes(b""), "model.safetensors is damaged"),
        (lambda p: (p / "model.safetensors").write_bytes(b"\xff" * 64), "is damaged"),
        (lambda p: (p / "model.safetensors").unlink(), "there is no safetensors file"),
        (lambda p: (p / "config.json").unlink(), "config.json is missing"),
        (lambda p: (p / "config.json").write_text("[]"), "config.json is not a JSON object"),
        (lambda p: (p / "config.json").write_text("["), "config.json is not a JSON object"),
        (lambda p: (p / "config.json").write_bytes(b"\xff"), "config.json is not a JSON object"),
        (lambda p: (p / "config.json").write_text('{"a":' * 99999), "is not a JSON object"),
        (lambda p: (p / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda p: (p / "tokenizer.json").write_text("{"), "tokenizer.json is not one"),
        (_edit_index(lambda m: m.update(x="../../etc/passwd")), "names '../../etc/passwd'"),
        (_edit_index(lambda m: m.update(x="/abs.safetensors")), "names '/abs.safetensors'"),
        (_edit_index(lambda m: m.update(x=7)), "names 7"),
        (_edit_index(lambda m: m.update(x="model-00001.safetensors")), "has no tensor 'x'"),
        (_edit_index(dict.clear), "has no weight_map"),
        (_remove_shard, "model-00002.safetensors is missing"),
        (_retype, "is F8_E4M3; read: F32, F16, BF16"),
        (lambda p: write_folder(p, config={"vocab_size": 268}), "has shape (267, 64)"),
        (lambda p: write_folder(p, config={"tie_word_embeddings": False}), "lm_head.weight is"),
        (lambda p: write_folder(p, config={"eos_token_id": -1}), "eos_token_id has -1"),
        (lambda p: _write(p, "generation_config.json", {"top_p": 3}), "top_p = 3.0 is outside"),
        (lambda p: _write(p, "tokenizer_config.json", {"auto_map": {}}), "auto_map"),
        (lambda p: _write(p, "tokenizer_config.json", {"chat_template": 1}), "chat_template is"),
        (lambda p: (p / "chat_template.jinja").write_bytes(b"\xff"), "is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    spoil(write_folder(tmp_path))
    assert reason in _refused(tmp_path)


def test_several_files_without_an_index_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, shards=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert "2 safetensors files and no model.safetensors.index.json" in _refused(tmp_path)


def test_no_code_beside_the_weights_is_run_or_read(tmp_path: Path) -> None:
    write_folder(tmp_path, config={"auto_map": {"AutoConfig": "canary.Config"}})
    (tmp_path / "canary.py").write_text("raise SystemExit(99)")
    opened: list[str] = []
    watching = True

    def watch(event: str, args: tuple[object, ...]) -> None:
        if watching and event in ("open", "import"):
            opened.append(str(args[0]))

    sys.addaudithook(watch)
    assert "auto_map asks for code" in _refused(tmp_path)
    watching = False
    assert not [name for name in opened if "canary" in name]
