"""All files of a listing into a folder: several at once, each until it is whole and right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from octavo.loader.config import LoaderConfig
from octavo.loader.part import Part
from octavo.loader.patience import Patience
from octavo.loader.progress import Progress
from octavo.loader.source import Listing, RemoteFile, Source, TransientError
from octavo.runtime.env import Env
from octavo.runtime.manifest import FileEntry
from octavo.v1.errors import MODEL_DAMAGED, OctavoError

_TRIES: Final = 3
"""Times that a file may come damaged; the first may begin with what an earlier run left."""


class Download:
    """One source being read.

    Args:
        source: where the bytes come from.
        config: bounds.
        env: clock and chance.
        progress: is told.
    """

    def __init__(
        self, source: Source, config: LoaderConfig, *, env: Env, progress: Progress
    ) -> None:
        self._source = source
        self._config = config
        self._env = env
        self._progress = progress

    async def list(self) -> Listing:
        """Returns what there is, after as many tries as the bounds allow."""
        patience = self._patience()
        while True:
            try:
                return await self._source.list()
            except TransientError as error:
                self._progress.retry(str(error))
                await patience.pause(error)

    async def fetch(
        self, listing: Listing, files: Iterable[RemoteFile], folder: Path
    ) -> dict[str, FileEntry]:
        """Brings files into a folder, whole and on the disk; returns what they are.

        Raises:
            OctavoError: a file cannot be had, or comes damaged again and again.
            OSError: the volume fails.
        """
        waiting = iter(sorted(files, key=lambda file: file.name))
        done: dict[str, FileEntry] = {}

        async def work() -> None:
            for file in waiting:
                done[file.name] = await self._file(listing, file, folder)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._config.connections):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return done

    async def _file(self, listing: Listing, file: RemoteFile, folder: Path) -> FileEntry:
        part = Part(folder, file)
        try:
            await part.resume(self._progress.found)
            problem = ""
            for _ in range(_TRIES):
                await self._fill(listing, file, part)
                problem = part.problem()
                if not problem:
                    return part.finish()
                self._progress.retry(f"{file.name} is damaged")
                self._progress.lost(part.size)
                part.discard()
        finally:
            part.close()
        raise OctavoError(
            MODEL_DAMAGED,
            place=self._source.place,
            model=self._config.model,
            file=file.name,
            times=_TRIES,
            reason=problem,
        )

    async def _fill(self, listing: Listing, file: RemoteFile, part: Part) -> None:
        """Reads until the part is whole."""
        patience = self._patience()
        while not part.is_whole:
            before = part.size
            try:
                async with aclosing(self._source.read(listing, file, part.size)) as pieces:
                    async for data in pieces:
                        size = part.size
                        part.write(data)
                        self._progress.got(part.size - size)
                        if part.is_whole:
                            return
                if part.size == before:
                    raise TransientError(f"{self._source.place} sends nothing of {file.name}")
                patience.progressed()
            except TransientError as error:
                if part.size > before:
                    patience.progressed()
                self._progress.retry(str(error))
                await patience.pause(error)

    def _patience(self) -> Patience:
        return Patience(
            self._source.place,
            self._config.model,
            self._config.give_up_s,
            clock=self._env.now,
            spread=self._env.rng("pauses").uniform,
        )
