"""A bad disk under the model: never a partial load that says it is ready, and others serve on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults import cgroup
from tests.faults.deployment import Deployment, Engine
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.workload import bodies

pytestmark = pytest.mark.faults

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


async def beside(model: Path, folder: Path, bad: Engine) -> None:
    """Starts a bad engine beside a good one: it ends and says why, and the other serves."""
    good = Engine("good", model, folder=folder)
    async with Deployment(folder, through=[good.address], own=[good]) as d:
        d.gateway.kill()
        at = d.gateway.command
        at[at.index(good.address)] = f"{good.address},{bad.address}"
        d.gateway.start()
        await d.gateway.engines("ready", 1)
        bad.start()
        try:
            answers = await d.ask_all(bodies(6, 200))
            assert all(answer.ok for answer in answers)
            status = await bad.ended(120)
            assert status > 0, f"ended with {status}: {bad.log}"
            assert "error[OCT-" in bad.log, f"ended with {status} and without a reason: {bad.log}"
            assert '"stage": "ready"' not in bad.log
            await d.gateway.engines("ready", 1)
            assert all(a.route[0] == good.address for a in await d.ask_all(bodies(6, 20)))
        finally:
            bad.kill()


def copy_of(model: Path, folder: Path) -> Path:
    return Path(shutil.copytree(model, folder / "copy"))


@pytest.mark.parametrize("keep", [0, 8, 1000, -1], ids=["empty", "header", "some", "all but one"])
def test_truncated_weights_are_no_model(keep: int, model: Path, tmp_path: Path) -> None:
    damaged = copy_of(model, tmp_path)
    weights = damaged / "model.safetensors"
    os.truncate(weights, keep if keep >= 0 else weights.stat().st_size + keep)
    bad = Engine("bad", damaged, folder=tmp_path)
    asyncio.run(beside(model, tmp_path, bad))


@needs_strace
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_read_error_ends_the_start_with_its_reason(
    name: str, model: Path, tmp_path: Path
) -> None:
    calls = "mmap" if name == "model.safetensors" else "read,pread64"
    bad = Engine("bad", model, folder=tmp_path)
    wrapped = [
        str(shutil.which("strace")), "-f", "-qq", "-o", "/dev/null", "-P", str(model / name),
        "-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO",
    ]  # fmt: skip
    bad.before = wrapped
    asyncio.run(beside(model, tmp_path, bad))


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[Path]:
    """A mounted disk with no byte left."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted: {done.stderr.strip()}")
    try:
        with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_for_kernels_costs_speed_only(model: Path, tmp_path: Path) -> None:
    """Compiled kernels cannot be kept there: the engine serves with the reference ones."""

    async def scenario() -> None:
        with full_disk(tmp_path / "home") as home:
            env = {"HOME": str(home), "TMPDIR": str(home)}
            engine = Engine("poor", model, folder=tmp_path, env=env)
            async with Deployment(tmp_path, own=[engine], through=[engine.address]) as d:
                assert (await d.ask(bodies(1, 8)[0])).ok
                assert "/none" in engine.log or "reference" in engine.log

    asyncio.run(scenario())


@cgroup.needs_memory
def test_an_engine_that_the_kernel_ends_for_its_memory(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, model=model) as d:
            asked = bodies(12, 1500)
            expected = await undisturbed(d, asked)
            victim = d.engines[0]
            with contextlib.ExitStack() as stack:

                async def shrink() -> None:
                    # What is charged already stays with the old group; new pages do not fit.
                    stack.enter_context(cgroup.memory_limit(victim.pid, 1 << 20))

                run = await disturbed(d, asked, expected, shrink, after_s=0.2)
                assert run.wrong == []
                dead = not victim.alive
                victim.kill()
            assert dead, "the kernel ended it"

    asyncio.run(scenario())


@cgroup.needs_cpu
def test_an_engine_with_a_tenth_of_a_core(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, model=model) as d:
            asked = bodies(8, 100)
            expected = await undisturbed(d, asked)
            with contextlib.ExitStack() as stack:

                async def slow_down() -> None:
                    stack.enter_context(cgroup.cpu_share(d.engines[0].pid, 0.1))

                run = await disturbed(d, asked, expected, slow_down, after_s=0)
                assert run.wrong == []
                again = await disturbed(d, asked, expected, nothing, after_s=0)
                assert again.wrong == []
                assert await d.gateway.metric("octavo_gateway_engines") == 2

    asyncio.run(scenario())


async def nothing() -> None:
    """Breaks nothing."""
