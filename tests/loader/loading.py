"""Models to load, and loaders to load them: within a test, or as processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from octavo.loader.config import LoaderConfig
from octavo.loader.load import Load
from octavo.runtime import manifest
from octavo.runtime.env import SystemEnv
from octavo.runtime.manifest import Manifest
from octavo.v1.errors import OctavoError

SHARDS: Final = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX: Final = "model.safetensors.index.json"
WANTED: Final = ("chat_template.jinja", "config.json", "generation_config.json", *SHARDS, INDEX)


def repository(kilobytes: int = 200) -> dict[str, bytes]:
    """A model of two shards, and beside it what is never loaded."""
    rng = random.Random(kilobytes)
    weight_map = {"a": SHARDS[0], "b": SHARDS[1]}
    return {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": rng.randbytes(3 * kilobytes),
        "generation_config.json": b"{}",
        "chat_template.jinja": "{{ messages }} é\n".encode(),
        INDEX: json.dumps({"metadata": {}, "weight_map": weight_map}).encode(),
        SHARDS[0]: rng.randbytes(1000 * kilobytes),
        SHARDS[1]: rng.randbytes(700 * kilobytes + 1),
        "consolidated.safetensors": b"the same once more",
        "pytorch_model.bin": b"\x80\x04pickle",
        "modeling.py": b"raise SystemExit",
        "README.md": b"# Tiny",
        "original/params.json": b"{}",
        "..\\evil.json": b"{}",
    }


def wanted(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What a loader has to bring of `repository`."""
    return {name: files[name] for name in (*WANTED, "tokenizer.json")}


class HastyEnv(SystemEnv):
    """The real world, but nothing is waited for by chance."""

    def rng(self, name: str) -> random.Random:
        class Zero(random.Random):
            def uniform(self, a: float, b: float) -> float:
                return 0.0

        return Zero()


def load(target: Path, model: str, environ: Mapping[str, str], **settings: object) -> Manifest:
    """Runs one loader here; its first failure is its last unless `give_up_s` says otherwise."""
    values: dict[str, object] = {"model": model, "target": str(target), "give_up_s": 0, **settings}
    config = LoaderConfig(**values)  # type: ignore[arg-type]

    async def run() -> Manifest:
        return await Load(config, environ, HastyEnv()).run()

    return asyncio.run(run())


def fails(target: Path, model: str, environ: Mapping[str, str], **settings: object) -> OctavoError:
    """Returns the error of a loader that has to fail."""
    with pytest.raises(OctavoError) as caught:
        load(target, model, environ, **settings)
    assert "\n" not in caught.value.message
    return caught.value


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check(target: Path, files: Mapping[str, bytes], *, alone: bool = True) -> Manifest:
    """Asserts that a target is exactly these files and their manifest.

    If it is alone, nothing that is not whole is left beside it.
    """
    found = content(target)
    whole = manifest.read(target)
    assert whole is not None
    assert found.pop(manifest.NAME) == whole.encode()
    assert found.keys() == files.keys()
    assert all(found[name] == data for name, data in files.items())
    manifest.check_sizes(target, whole)
    manifest.check_digests(target, whole)
    assert not alone or list(target.parent.glob(".partial-*")) == []
    return whole


def command(target: Path, model: str, *arguments: str) -> list[str]:
    return [
        *(sys.executable, "-m", "octavo.loader", "--config", "", "--model", model),
        *("--target", str(target), *arguments),
    ]


def start(
    target: Path, model: str, environ: Mapping[str, str], *arguments: str
) -> subprocess.Popen[str]:
    """Starts a loader as a process of its own."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        command(target, model, *arguments),
        env=os.environ | {"PYTHONPATH": paths} | dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
