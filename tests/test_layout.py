"""The house rules as a test: layout, sizes, documentation, and what an import may load."""

from __future__ import annotations

import ast
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.cli.settings import GROUPS
from octavo.runtime.settings import flag_of, names
from octavo.v1 import errors
from octavo.v1.errors import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
ROOTS = ("services", "operator", "kernels", "proto")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
VAGUE = {"utils", "util", "helpers", "common", "misc", "types"}

UNTESTED = {
    "engine/__main__": "run as a process by engine/test_process",
    "gateway/__main__": "run as a process by gateway/test_process",
    "engine/batch": "values only",
    "engine/request": "values only",
    "gateway/call": "values only",
    "gateway/discovery": "values, and a port with two adapters: static_ and kubernetes_discovery",
    "gateway/endpoints": "values only",
    "gateway/progress": "values only",
    "gateway/link": "a port; grpc_link and the fakes are its sides",
    "loader/__main__": "run as a process by loader/test_process",
    "loader/config": "values only",
    "loader/source": "a port; hub and bucket are its adapters",
    "gateway/store": "a port; redis_store is its adapter",
    "operator/__main__": "run as a process by operator/test_process",
    "operator/cluster": "a port; lightkube_cluster and the fake of the tests are its adapters",
    "operator/kinds": "values only",
    "operator/plan": "values only",
    "operator/situation": "values for judgement and status, whose tests make them by reconcile",
    "operator/structural": "pieces of schema, whose test walks through all of them",
    "operator/schema_pod": "a part of schema",
    "operator/schema_status": "a part of schema",
    "kernels/dispatch": "every operation's test runs through it",
    "kernels/kv_pool": "a layout; copy_blocks, rope_kv_write and paged_attention read and write it",
}
"""Modules without a test file of their own, and where they are tested instead."""

LONG_FILES: dict[str, str] = {"v1/errors": "a table, no branch in it"}
LONG_FUNCTIONS: dict[str, str] = {
    "services/octavo/engine/metrics.py:__init__": "a list of metrics, no branch in it",
    "services/octavo/gateway/metrics.py:__init__": "a list of metrics, no branch in it",
}
"""Exceptions from the limits, with their reason."""


def modules() -> Iterator[Path]:
    """Yields our source files, without generated ones."""
    for root in ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            if "_pb2" not in path.name:
                yield path


def short(path: Path) -> str:
    """Returns a path as the rules name it: `engine/models/config`."""
    inner = path.relative_to(ROOT).parts[1:]
    return "/".join(inner[1:]).removesuffix(".py")


def test_namespace_roots_have_no_init() -> None:
    folders = (path for path in ROOT.glob("*/octavo") if path.is_dir())
    roots = [path for path in folders if path.parent.name != "charts"]
    assert sorted(path.parent.name for path in roots) == sorted(ROOTS)
    for folder in [*roots, *(path.parent for path in roots)]:
        assert not (folder / "__init__.py").exists(), folder


def test_every_portion_is_typed_and_every_package_says_what_it_is() -> None:
    for portion in (path for root in ROOTS for path in (ROOT / root / "octavo").iterdir()):
        if portion.name == "__pycache__":
            continue
        assert (portion / "py.typed").exists(), portion
        for folder in {path.parent for path in portion.rglob("*.py")}:
            init = folder / "__init__.py"
            assert init.exists(), folder
            assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), folder


def test_tests_are_no_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_module_has_a_vague_name() -> None:
    assert [path for path in modules() if path.stem in VAGUE] == []


def test_every_module_has_its_test_file() -> None:
    missing = [short(path) for path in modules() if not _has_test(path)]
    assert sorted(set(missing) - UNTESTED.keys()) == []
    assert sorted(UNTESTED.keys() - set(missing)) == [], "tested by now"


def _has_test(path: Path) -> bool:
    """Tells whether `engine/models/config` has a tests/engine/**/test_config.py."""
    portion, *folders, name = short(path).split("/")
    if name == "__init__":
        return True
    if portion == "kernels" and folders:  # an operation is one folder and one test file
        name = folders[0]
    tests = ROOT / "tests" / {"v1": "proto"}.get(portion, portion)
    return any(tests.rglob(f"test_{name.strip('_')}.py"))


def test_files_are_short() -> None:
    sizes = {short(p): len(p.read_text(encoding="utf-8").splitlines()) for p in modules()}
    long = {name: size for name, size in sizes.items() if size > MAX_FILE_LINES}
    assert long.keys() == LONG_FILES.keys(), long


def test_functions_are_short() -> None:
    long = {}
    for path in [*modules(), *(ROOT / "tools").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = size
    assert long.keys() == LONG_FUNCTIONS.keys(), long


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    wanted = [flag_of(name) for name in names(*GROUPS.values())]
    assert [flag for flag in wanted if f"`{flag}`" not in page] == []


def test_every_error_is_documented_and_raised_somewhere() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert [code for code in CATALOGUE if code not in page] == []
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, errors.ErrorKind)}
    assert sorted(kinds - _names_used()) == []


def _names_used() -> set[str]:
    """Returns the names that code outside the catalogue uses; an import alone is no use."""
    paths = [path for path in modules() if short(path) != "v1/errors"]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    return {n.id for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Name)}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("octavo.kernels", ["torch", "triton"]),
        ("octavo.engine.scheduler", ["torch", "triton", "grpc", "asyncio"]),
        ("octavo.gateway.app", ["torch", "numpy", "transformers"]),
        ("octavo.gateway.process", ["torch", "lightkube", "httpx2"]),
        ("octavo.cli.commands", ["torch", "grpc", "octavo.engine", "octavo.gateway"]),
        ("octavo.loader.process", ["torch", "numpy", "grpc", "httpx", "obstore"]),
        ("octavo.v1.block_hash", ["google.protobuf"]),
    ],
)
def test_import_loads_nothing_heavy(module: str, heavy: list[str]) -> None:
    code = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    assert _python(code) == "[]"


def test_operator_is_the_standard_library_s() -> None:
    where = _python("import operator; print(operator.__file__)")
    assert Path(where).parent == Path(os.__file__).parent


def _python(code: str) -> str:
    paths = os.pathsep.join(str(ROOT / root) for root in ROOTS)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-model.txt", "tests/cluster/requirements.txt"]
)
def test_lock_has_hashes_and_no_index_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in text
    assert "index-url" not in text.replace("--no-emit-index-url", "")
    pins = [block for block in re.split(r"\n(?=[A-Za-z0-9])", text) if "==" in block[:200]]
    assert pins
    assert [pin for pin in pins if "--hash=sha256:" not in pin and not pin.startswith("#")] == []


def test_unpickling_anything_fails_the_run() -> None:
    data = pickle.dumps(os.getcwd)
    with pytest.raises(AssertionError, match="pickle looks up"):
        pickle.loads(data)  # noqa: S301
