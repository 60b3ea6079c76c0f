"""One load from beginning to end: what is there already, what is missing, the name in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from octavo.loader import model_uri, selection
from octavo.loader.config import LoaderConfig
from octavo.loader.download import Download
from octavo.loader.model_uri import HubModel
from octavo.loader.progress import Progress
from octavo.loader.selection import UnusableError
from octavo.loader.source import Listing, RemoteFile, Source
from octavo.loader.volume import Volume
from octavo.runtime import manifest
from octavo.runtime.env import Env
from octavo.runtime.manifest import Manifest, ManifestError
from octavo.v1.errors import MODEL_UNREADABLE, TARGET_TAKEN, OctavoError

log = structlog.get_logger(__name__)

_LOOK_S = 1.0


class Load:
    """Brings one model to its target.

    Args:
        config: what and where.
        environ: tokens, credentials and endpoints.
        env: clock and chance.

    Raises:
        OctavoError: the settings name no model or no target.
    """

    def __init__(self, config: LoaderConfig, environ: Mapping[str, str], env: Env) -> None:
        self._config = config
        self._environ = environ
        self._env = env
        self._model = model_uri.parse(config.model)
        model_uri.check_revision(config.revision)
        self._volume = Volume(Path(config.target))
        self._progress = Progress(env.now)

    async def run(self) -> Manifest:
        """Returns what the target holds, once it holds it.

        A revision that moves is looked up once: as long as the target is whole, it stays as it is.

        Raises:
            OctavoError: with the reason.
        """
        looking = asyncio.create_task(self._look())
        try:
            held = self._held()
            if held is not None and self._is_asked(held) and not self._problem(held):
                return held
            async with self._volume.lock(self._waiting):
                return await self._bring()
        except OSError as error:
            raise self._volume.failed(error) from error
        finally:
            looking.cancel()

    def _held(self) -> Manifest | None:
        """Returns the manifest of the target, None when nothing is there yet.

        Raises:
            OctavoError: TARGET_TAKEN, when it is not for this model.
        """
        if not self._volume.is_taken:
            return None
        try:
            held = manifest.read(self._volume.target)
        except ManifestError as error:
            raise self._taken(f"a model whose {error}") from error
        if held is None:
            raise self._taken("files that the loader did not bring")
        if held.model != self._config.model:
            raise self._taken(held.model)
        return held

    def _is_asked(self, held: Manifest) -> bool:
        return self._config.revision in (held.asked, held.revision)

    def _problem(self, held: Manifest) -> str:
        """Returns what is wrong with the files of the target; empty for nothing."""
        try:
            manifest.check_sizes(self._volume.target, held)
            if self._config.verify:
                self._progress.stage("checking", total=held.num_bytes)
                manifest.check_digests(
                    self._volume.target, held, lambda done, _: self._progress.at(done)
                )
        except ManifestError as error:
            return str(error)
        return ""

    async def _bring(self) -> Manifest:
        """Does the work; the lock is held."""
        held = self._held()
        if held is not None and self._is_asked(held) and not self._problem(held):
            return held  # by the loader that had the lock before
        async with self._source() as source:
            download = Download(source, self._config, env=self._env, progress=self._progress)
            self._progress.stage("listing")
            listing = await download.list()
            partial = self._volume.partial(self._config.model, listing.revision)
            if held is not None:
                if held.revision != listing.revision:
                    raise self._taken(f"revision {held.revision}", f"revision {listing.revision}")
                if not (problem := self._problem(held)):
                    return held
                log.warning("model_damaged", target=str(self._volume.target), reason=problem)
                self._volume.withdraw(partial)
            self._volume.prepare(partial)
            self._volume.prune(partial, listing.files)
            return await self._fill(download, listing, partial)

    async def _fill(self, download: Download, listing: Listing, partial: Path) -> Manifest:
        """Completes the partial folder and gives it its name."""
        index = await self._index(download, listing, partial)
        wanted = self._select(listing, index)
        present = self._volume.prune(partial, wanted)
        num_bytes = sum(file.size for file in wanted)
        self._volume.make_room(num_bytes - present, self._config.keep)
        self._volume.check_space(num_bytes - present)
        self._progress.stage("loading", total=num_bytes)
        entries = await download.fetch(listing, wanted, partial)
        whole = Manifest(
            model=self._config.model,
            asked=self._config.revision,
            revision=listing.revision,
            files=dict(sorted(entries.items())),
        )
        self._progress.stage("naming")
        self._volume.publish(partial, whole)
        return whole

    async def _index(self, download: Download, listing: Listing, partial: Path) -> bytes:
        """Returns the list of weight files, loaded and checked like any other file."""
        names = {file.name for file in listing.files}
        if not selection.wants_index(names, self._model.file):
            return b""
        (file,) = [file for file in listing.files if file.name == selection.INDEX]
        if file.size > selection.MAX_INDEX_BYTES:
            raise self._unusable(f"{file.name} is larger than {selection.MAX_INDEX_BYTES} bytes")
        await download.fetch(listing, [file], partial)
        return (partial / file.name).read_bytes()

    def _select(self, listing: Listing, index: bytes) -> list[RemoteFile]:
        names = {file.name: file for file in listing.files}
        try:
            chosen = selection.select(names, file=self._model.file, index=index)
        except UnusableError as error:
            raise self._unusable(str(error)) from error
        return [names[name] for name in chosen]

    @asynccontextmanager
    async def _source(self) -> AsyncIterator[Source]:
        # Imported here: a model that is there already needs neither.
        if isinstance(self._model, HubModel):
            from octavo.loader import hub

            async with hub.connect(self._model, self._config.revision, self._environ) as source:
                yield source
        else:
            from octavo.loader.bucket import Bucket

            yield Bucket(
                self._model,
                self._config.revision,
                check_etags=self._config.check_etags,
                environ=self._environ,
            )

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._progress.look()

    def _waiting(self) -> None:
        self._progress.stage("waiting for another loader")

    def _taken(self, found: str, wanted: str = "") -> OctavoError:
        wanted = wanted or self._config.model
        return OctavoError(TARGET_TAKEN, path=self._volume.target, found=found, wanted=wanted)

    def _unusable(self, reason: str) -> OctavoError:
        return OctavoError(MODEL_UNREADABLE, path=self._config.model, reason=reason)
