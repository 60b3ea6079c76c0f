"""Compiles the `cpu.cpp` of all operations into one library, once per machine, and calls it.

The library is kept in the user's cache folder under a name that is a digest of everything that
decides its content. Images have no compiler: libraries for whole classes of machines lie beside the
sources there (`prebuild`). Without either there is no library, and `dispatch` takes the reference.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import structlog
import torch

log = structlog.get_logger(__name__)

VERSION = 2
"""Raised with every change that alters the numbers that a kernel computes."""

_SOURCES = Path(__file__).parent
_COMPILERS = ("g++", "c++", "clang++")
# No -ffast-math and no contraction: the order and the rounding of every sum are in the source.
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-ffp-contract=off", "-Wall")
_COMPILE_TIMEOUT_S = 600  # 6 s of one core, on a machine that may be busy
_V3 = frozenset(("abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_CLASSES = {
    "x86_64": {
        "cooperlake": _V4 | {"avx512_bf16", "avx512_vnni"},
        "x86-64-v4": _V4,
        "x86-64-v3": _V3,
        "x86-64": frozenset[str](),
    },
    "aarch64": {"armv8-a": frozenset[str]()},
}
"""Values of -march by machine, the best first, and the processor's features that each needs."""

PREBUILT = _SOURCES / "prebuilt"

_LETTERS = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float}
_SUFFIX = {torch.bfloat16: "bf16", torch.float32: "f32"}


def cache_folder() -> Path:
    """Returns the user's folder for compiled libraries."""
    return Path.home() / ".cache" / "octavo"


@functools.cache
def cpu_info() -> tuple[str, str]:
    """Returns the vendor and the feature flags of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine(), platform.processor()
    fields: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or platform.machine()
    return vendor, fields.get("flags") or fields.get("Features") or ""


def isa() -> str:
    """Returns the class of instructions that decides how results are rounded."""
    flags = cpu_info()[1].split()
    for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "asimd"):
        if name in flags:
            return name.replace("_", "")
    return platform.machine()


def build(folder: Path, *, machine: str = "native") -> Path:
    """Compiles the library for a machine unless the folder has it already.

    Args:
        folder: where libraries are kept; made if it is not there.
        machine: the value of the compiler's -march.

    Raises:
        FileNotFoundError: there is no compiler.
        subprocess.SubprocessError: the compiler failed or took too long.
        OSError: the folder cannot be written.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"none of {', '.join(_COMPILERS)} is installed")
    sources = sorted(_SOURCES.glob("*/cpu.cpp"))
    flags = [*_FLAGS, f"-march={machine}"]
    version = _run([compiler, "--version"])
    content = [path.read_bytes() for path in (*sorted(_SOURCES.glob("*.h")), *sources)]
    digest = hashlib.blake2b(digest_size=16)
    for part in (*content, *(text.encode() for text in (*flags, version, *cpu_info()))):
        digest.update(len(part).to_bytes(8, "little") + part)
    library_path = folder / f"kernels-{digest.hexdigest()}.so"
    if not library_path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            target = Path(scratch) / "kernels.so"
            _run([compiler, *flags, f"-I{_SOURCES}", *map(str, sources), "-o", str(target)])
            target.replace(library_path)  # atomic: two processes may build at once
    return library_path


def prebuild(folder: Path = PREBUILT) -> list[Path]:
    """Compiles a library for each class of machines of this kind; for images, which then run it.

    Raises what `build` raises.
    """
    built = []
    for name in _CLASSES[platform.machine()]:
        with tempfile.TemporaryDirectory() as scratch:
            library_path = build(Path(scratch), machine=name)
            folder.mkdir(parents=True, exist_ok=True)
            built.append(Path(shutil.copyfile(library_path, folder / f"{name}.so")))
    return built


def prebuilt(folder: Path = PREBUILT) -> Path | None:
    """Returns the best library in a folder that this processor can run."""
    features = set(cpu_info()[1].split())
    for name, needed in _CLASSES.get(platform.machine(), {}).items():
        if needed <= features and (path := folder / f"{name}.so").exists():
            return path
    return None


def _run(command: list[str]) -> str:
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S
    ).stdout


@functools.cache
def library() -> ctypes.CDLL | None:
    """Returns the library for this machine, compiled at the first call; None if that fails."""
    try:
        return ctypes.CDLL(str(prebuilt() or build(cache_folder())))
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        log.warning(
            "no native kernels; the reference implementation is 10 to 100 times slower",
            reason=detail[-500:],
            help="install g++ and make the cache folder writable",
            folder=str(cache_folder()),
        )
        return None


def compiled_isa() -> str:
    """Returns the instructions that the library was compiled to; "none" without a library.

    An old compiler leaves out what the processor could do, and then rounds otherwise.
    """
    loaded = library()
    if loaded is None:
        return "none"
    loaded.octavo_compiled_isa.restype = ctypes.c_char_p
    name: bytes = loaded.octavo_compiled_isa()
    return name.decode()


@functools.cache
def function(name: str, dtype: torch.dtype, signature: str) -> Callable[..., None]:
    """Returns a function of the library.

    Args:
        name: the operation.
        dtype: bfloat16 or float32.
        signature: a letter an argument: p a pointer, n an integer, f a float.
    """
    loaded = library()
    if loaded is None:
        raise RuntimeError("native kernels were asked for, but cannot be compiled here")
    call: Callable[..., None] = getattr(loaded, f"octavo_{name}_{_SUFFIX[dtype]}")
    call.restype = None  # type: ignore[attr-defined]
    call.argtypes = [_LETTERS[letter] for letter in signature]  # type: ignore[attr-defined]
    return call
