"""Builds images from Dockerfiles, without a registry: dockerd in a machine of its own.

It serves builds only. Its layers stay in the cache between runs, so that only what changed is built
again. The base image is made by debootstrap once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.cluster.api import Object
from tests.cluster.binaries import build_all
from tests.cluster.machine import Machine
from tests.cluster.packages import BUILDER, ensure
from tests.cluster.places import alone, cache_folder, say
from tests.cluster.record import clear_orphans, new_record

BASE_IMAGE = "octavo.dev/base:bookworm"
"""What the Dockerfile's argument of the same name is set to."""
_DAEMON = {"builder": {"gc": {"enabled": True, "defaultKeepStorage": "10GB"}}}
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_DOCKER = "/usr/bin/docker"
_DATA = "/var/lib/docker"
_SETTINGS = ("User", "Env", "Entrypoint", "Cmd", "WorkingDir", "Labels")
_START_S = 60.0
_BUILD_S = 1800.0
_WASTE = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man")


def made_of(layers: list[str], config: Object) -> object:
    """Returns layers and settings of an image: not when it was built, which never is the same."""
    return layers, [config.get(name) or None for name in _SETTINGS]


class Builder:
    """dockerd for the time of some builds; one at a time on a machine."""

    def __init__(self) -> None:
        ensure(BUILDER)
        build_all(("pause",))
        clear_orphans()
        self._stack = ExitStack()
        self._data = cache_folder() / "docker"
        self._data.mkdir(exist_ok=True)
        self._record = new_record("builder")
        # Builds install packages, so they use the host's network; dockerd changes nothing of it.
        self._machine = Machine(self._record, bound=True, network=False)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(alone(cache_folder() / "docker"))
            stack.callback(self._record.undo)
            self._machine.start()
            stack.callback(self._machine.stop)
            self._machine.run("mkdir", _DATA)
            self._machine.run("mount", "--bind", str(self._data), _DATA)
            config = self._record.folder / "daemon.json"
            config.write_text(json.dumps(_DAEMON), encoding="utf-8")
            flags = [f"--config-file={config}"]
            flags += ["--bridge=none", "--iptables=false", "--ip6tables=false"]
            flags += ["--oom-score-adjust=0", "--storage-driver=overlay2", "--live-restore=false"]
            daemon = self._machine.program("dockerd", ["dockerd", *flags])
            daemon.start()
            daemon.until(self._answers, _START_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        prune = self._docker("image", "prune", "--force")
        subprocess.run(prune, capture_output=True, check=False, timeout=60)
        self._stack.close()

    def _answers(self) -> bool:
        done = subprocess.run(self._docker("info"), capture_output=True, check=False, timeout=60)
        return done.returncode == 0

    def _docker(self, *arguments: str) -> list[str]:
        settings = ("env", "DOCKER_BUILDKIT=1", f"DOCKER_CONFIG={self._record.folder}")
        return [*self._machine.entering(), *settings, _DOCKER, *arguments]

    def build_image(
        self,
        name: str,
        dockerfile: Path,
        *,
        target: str = "",
        args: Mapping[str, str] | None = None,
    ) -> str:
        """Builds a target of a Dockerfile, whose folder is the context.

        Args:
            name: of the image, with its tag.
            dockerfile: if it has an argument BASE_IMAGE, that becomes our own base.
            target: a stage of it; the last one when empty.
            args: build arguments.

        Returns:
            The name.
        """
        wanted = dict(args or {})
        if "BASE_IMAGE" in dockerfile.read_text(encoding="utf-8"):
            self.base_image()
            wanted.setdefault("BASE_IMAGE", BASE_IMAGE)
        command = ["build", "--progress=plain", "--network=host", "--tag", name]
        command += ["--file", str(dockerfile), *(["--target", target] if target else [])]
        for key, value in wanted.items():
            command += ["--build-arg", f"{key}={value}"]
        if _CERTIFICATES.exists():
            command += ["--secret", f"id=ca,src={_CERTIFICATES}"]
        begin = time.monotonic()
        done = subprocess.run(
            self._docker(*command, str(dockerfile.parent)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{name} was not built:\n{done.stdout[-5000:]}")
        say(f"built {name} in {time.monotonic() - begin:.0f} s")
        return name

    def base_image(self) -> None:
        """Makes the base image unless it is there: Debian with certificates."""
        if self._has(BASE_IMAGE):
            return
        archive = cache_folder() / "base-bookworm.tar"
        if not archive.exists():
            self._debootstrap(archive)
        subprocess.run(
            self._docker("import", str(archive), BASE_IMAGE),
            check=True,
            capture_output=True,
            timeout=300,
        )

    def content(self, name: str) -> object:
        """Returns what an image is made of."""
        found = self._inspect(name)
        return made_of(found["RootFS"]["Layers"], found["Config"])

    def folders(self, name: str) -> list[Path]:
        """Returns where an image's layers lie, the uppermost first. Nobody may write there."""
        found = self._inspect(name)["GraphDriver"]["Data"]
        lower = found.get("LowerDir")
        places = [found["UpperDir"], *(lower.split(":") if lower else ())]
        return [self._data / place.removeprefix(f"{_DATA}/") for place in places]

    def config(self, name: str) -> Object:
        """Returns an image's settings: user, variables, labels."""
        found: Object = self._inspect(name)["Config"]
        return found

    def _inspect(self, name: str) -> Object:
        command = self._docker("image", "inspect", name)
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        found: Object
        (found,) = json.loads(done.stdout)
        return found

    def _has(self, image: str) -> bool:
        found = self._docker("image", "inspect", image)
        return subprocess.run(found, capture_output=True, check=False, timeout=60).returncode == 0

    def _debootstrap(self, archive: Path) -> None:
        say("making the base image with debootstrap (2 minutes the first time)")
        root, unfinished = self._record.folder / "base", archive.with_suffix(".unfinished")
        include = "--include=ca-certificates"
        options = ["--variant=minbase", include, "bookworm", str(root)]
        self._machine.run("debootstrap", *options, timeout_s=900.0)
        for place in _WASTE:
            shutil.rmtree(root / place)
            (root / place).mkdir()
        self._machine.run("tar", "-C", str(root), "-cf", str(unfinished), ".", timeout_s=300.0)
        unfinished.rename(archive)

    @contextmanager
    def saved(self, *names: str) -> Iterator[IO[bytes]]:
        """Gives images as a stream in the form of `docker save`."""
        with subprocess.Popen(self._docker("save", *names), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            yield process.stdout
        if process.returncode != 0:
            raise RuntimeError(f"docker save {' '.join(names)} ended with {process.returncode}")
