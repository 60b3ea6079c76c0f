"""Building the native library, and what happens without a compiler."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
import torch
from tests.kernels.tensors import AttentionCase, assert_close, random

from octavo.kernels import dispatch, native
from octavo.kernels.paged_attention import paged_attention
from octavo.kernels.silu_mul import silu_mul


def test_a_library_is_built_once(tmp_path: Path) -> None:
    path = Path(shutil.copy2(native.build(native.cache_folder()), tmp_path))
    built = path.stat()
    assert native.build(tmp_path) == path
    assert path.stat().st_mtime_ns == built.st_mtime_ns
    assert list(tmp_path.iterdir()) == [path]


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        native.build(tmp_path, machine="no-such-machine")
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler_the_reference_runs_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    native.library.cache_clear()
    try:
        with structlog.testing.capture_logs() as logs:
            assert not dispatch.use_native(torch.empty(1), None)
            assert not dispatch.use_native(torch.empty(1), None)
        assert len(logs) == 1
        assert "slower" in logs[0]["event"]
        assert "g++" in logs[0]["reason"]
        with pytest.raises(RuntimeError, match="cannot be compiled"):
            native.function("silu_mul", torch.float16, "p")
    finally:
        native.library.cache_clear()
        native.function.cache_clear()


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, octavo.kernels; sys.exit('torch' in sys.modules)"
    roots = {"PYTHONPATH": str(Path(native.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=roots, check=False).returncode == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86-64")
@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64"], ids=["avx2", "sse2"])
def test_older_instruction_sets_compute_the_same(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = AttentionCase(requests=((0, 90), (100, 1)), head_dim=64, dtype=torch.bfloat16)
    qkv, pool, tables, starts, firsts = case.build()
    gate_up = random(3, 200, dtype=torch.float32)

    def compute() -> tuple[torch.Tensor, torch.Tensor]:
        heads = paged_attention(
            qkv,
            pool,
            case.layer,
            head_dim=case.head_dim,
            block_tables=tables,
            query_starts=starts,
            first_positions=firsts,
            scale=case.scale,
            force="native",
        )
        return heads, silu_mul(gate_up, dtype=torch.float32, force="native")

    expected = compute()
    older = ctypes.CDLL(str(native.build(native.cache_folder(), machine=machine)))
    monkeypatch.setattr(native, "library", lambda: older)
    native.function.cache_clear()
    try:
        actual = compute()
    finally:
        native.function.cache_clear()
    for ours, theirs in zip(actual, expected, strict=True):
        assert_close(ours, theirs)


def test_the_library_says_what_it_was_compiled_to() -> None:
    known = {"avx512bf16", "avx512", "avx2", "fma", "plain"}
    assert native.compiled_isa() in (known if native.library() is not None else {"none"})


def test_images_take_a_library_that_was_built_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = next(name for name, needed in native._CLASSES[platform.machine()].items()
                if needed <= set(native.cpu_info()[1].split()))  # fmt: skip
    built = native.build(native.cache_folder(), machine=best)
    ready = Path(shutil.copy2(built, tmp_path / f"{best}.so"))
    assert native.prebuilt(tmp_path) == ready
    monkeypatch.setattr(native, "prebuilt", lambda: ready)
    monkeypatch.setattr(native, "_COMPILERS", ())
    native.library.cache_clear()
    try:
        assert native.library() is not None, "there is no compiler, and none is needed"
        said = native.compiled_isa()
    finally:
        native.library.cache_clear()
    monkeypatch.undo()
    assert said == native.compiled_isa(), "another numerics id than the one compiled here"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86-64")
@pytest.mark.parametrize(
    ("features", "wanted"),
    [
        ("fpu sse2", "x86-64"),
        ("abm avx2 bmi1 bmi2 f16c fma movbe", "x86-64-v3"),
        ("avx2 fma", "x86-64"),
        ("abm avx2 bmi1 bmi2 f16c fma movbe avx512f", "x86-64-v3"),
        (
            "abm avx2 bmi1 bmi2 f16c fma movbe avx512f avx512bw avx512cd avx512dq avx512vl",
            "x86-64-v4",
        ),
    ],
)
def test_processors_get_what_they_can_run(
    features: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "cpu_info", lambda: ("vendor", features))
    assert native.prebuilt(tmp_path) is None
    for name in native._CLASSES["x86_64"]:
        (tmp_path / f"{name}.so").touch()
    assert native.prebuilt(tmp_path) == tmp_path / f"{wanted}.so"


def test_every_class_of_machines_can_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[str] = []

    def build(folder: Path, *, machine: str) -> Path:
        wanted.append(machine)
        (folder / "kernels.so").write_text(machine, encoding="utf-8")
        return folder / "kernels.so"

    monkeypatch.setattr(native, "build", build)
    built = native.prebuild(tmp_path)
    assert [path.stem for path in built] == wanted == list(native._CLASSES[platform.machine()])
    assert [path.read_text("utf-8") for path in built] == wanted
