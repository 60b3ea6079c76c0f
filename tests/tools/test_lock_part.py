from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from tools.lock_part import blocks, closure, named, part, roots_of

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.txt").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

SMALL = """\
# a comment
app==1.0 \\
    --hash=sha256:aa
    # via octavo (pyproject.toml)
below==2.0 ; sys_platform == 'linux' \\
    --hash=sha256:bb \\
    --hash=sha256:bc
    # via
    #   app
    #   other-app
deep.er==3.0 \\
    --hash=sha256:cc
    # via below
other-app==4.0 \\
    --hash=sha256:dd
    # via octavo (pyproject.toml:dev)
"""


def test_a_part_has_what_its_roots_need_and_nothing_else() -> None:
    assert closure(SMALL, {"app"}) == {"app", "below", "deep-er"}
    assert closure(SMALL, {"deep-er"}) == {"deep-er"}
    assert part(SMALL, {"app", "deep-er"}) == (
        "app==1.0 \\\n    --hash=sha256:aa\n    # via octavo (pyproject.toml)\n"
        "deep.er==3.0 \\\n    --hash=sha256:cc\n    # via below\n"
    )


def test_versions_for_different_interpreters_stay_together() -> None:
    pins = (
        "a==1 ; python_version < '3' \\\n    # via b\n"
        "a==2 ; python_version >= '3' \\\n    # via b\n"
    )
    lock = f"{pins}b==1 \\\n    # via octavo (pyproject.toml)\n"
    assert part(lock, closure(lock, {"a"})) == pins
    assert closure(lock, {"b"}) == {"a", "b"}


def test_patterns_name_packages() -> None:
    assert named(SMALL, [".*app"]) == {"app", "other-app"}
    assert named(SMALL, ["ap"]) == set()


def test_extras_bring_the_base_along() -> None:
    project: dict[str, object] = {
        "dependencies": ["base>=1"],
        "optional-dependencies": {"web": ["Some_Web.Thing[x]>=2 ; python_version > '3'"]},
    }
    assert roots_of(project, ["web"]) == {"base", "some-web-thing"}
    assert roots_of(project, ["a.b"]) == {"a-b"}


def test_unlocked_package_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        closure(SMALL, {"nothing"})


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_every_extra_is_locked_with_hashes(extra: str) -> None:
    wanted = closure(LOCK, roots_of(PROJECT, [extra]))
    found = blocks(part(LOCK, wanted))
    assert found.keys() == wanted
    assert all("--hash=sha256:" in block for block in found.values())


def test_only_the_engine_s_part_has_torch() -> None:
    for extra in PROJECT["optional-dependencies"]:
        has_torch = "torch" in closure(LOCK, roots_of(PROJECT, [extra]))
        assert has_torch == (extra == "engine")


def test_parts_that_lie_in_two_layers_complete_each_other() -> None:
    def printed(*words: str) -> set[str]:
        command = [sys.executable, str(ROOT / "tools" / "lock_part.py"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return set(re.findall(r"^([a-z0-9._-]+)==", done.stdout, re.MULTILINE))

    whole = printed("engine")
    torch = printed("torch")
    rest = printed("engine", "--without", "torch")
    assert rest | torch == whole
    assert rest & torch == set()
    light = printed("torch", "--without", "torch", "triton", "nvidia-.*", "cuda-.*")
    assert not [name for name in light if name.startswith(("torch", "nvidia", "cuda"))]


def imported(path: Path) -> set[str]:
    """Returns the modules that a file imports, wherever in it it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def file_of(module: str) -> Path | None:
    """Returns the file of a module of ours."""
    for root in ("services", "operator", "kernels", "proto"):
        path = ROOT / root / Path(*module.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.exists():
                return candidate
    return None


@pytest.mark.parametrize("part_name", ["engine", "gateway", "operator", "loader"])
def test_each_part_names_the_packages_that_it_imports(part_name: str) -> None:
    folder = file_of(f"octavo.{part_name}")
    assert folder is not None
    waiting, seen, foreign = list(folder.parent.rglob("*.py")), set[Path](), set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for module in imported(path):
            if not module.startswith("octavo."):
                foreign.add(module.partition(".")[0])
            elif (ours := file_of(module)) is not None:
                waiting.append(ours)
    distributions = packages_distributions()
    locked = closure(LOCK, roots_of(PROJECT, [part_name]))
    for name in foreign - sys.stdlib_module_names - {"octavo", "__future__"}:
        owners = {re.sub(r"[-_.]+", "-", owner).lower() for owner in distributions[name]}
        assert owners & locked, f"{part_name} imports {name}, which its extra does not bring"
