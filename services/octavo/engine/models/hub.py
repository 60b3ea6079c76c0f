"""Fetches a model from the Hugging Face hub into its cache. Imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from huggingface_hub import errors, snapshot_download
from tqdm import tqdm  # type: ignore[import-untyped]

from octavo.runtime.client_errors import text_of

FILES: Final = ("*.safetensors", "*.json", "*.jinja")
"""What is fetched: weights, settings, tokenizer, templates. No pickle, no code."""

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all; the latter grows while files begin."""


class NotFetchedError(Exception):
    """Why the hub did not give the model, in one line."""


def fetch(repository: str, revision: str, progress: Progress | None) -> Path:
    """Returns the folder of the one commit that `revision` names, complete.

    Without a network a complete cached commit is used.

    Raises:
        NotFetchedError: with the reason.
    """
    try:
        folder = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=list(FILES),
            ignore_patterns="*/*",
            tqdm_class=_bar_class(progress or _silent),
        )
    except errors.RevisionNotFoundError as error:
        raise NotFetchedError(f"the hub has no revision '{revision}' of it") from error
    except errors.RepositoryNotFoundError as error:
        reason = "the hub does not know it, or shows it only with a token (HF_TOKEN)"
        raise NotFetchedError(reason) from error
    except (OSError, ValueError, errors.HTTPError) as error:  # type: ignore[attr-defined]
        cause = error.__cause__ or error
        line = (text_of(cause).strip().splitlines() or [""])[0]
        raise NotFetchedError(f"{type(cause).__name__}: {line[:200]}") from error
    return Path(folder)


def _silent(_done: int, _total: int) -> None:
    pass


def _bar_class(progress: Progress) -> type[Any]:
    """Returns a progress bar that draws nothing and reports bytes.

    The hub client makes one bar for bytes received and one for bytes written, and either may stand
    still, so the furthest one counts.
    """
    furthest = [0, 0]

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})
            self._counts_bytes = kwargs.get("unit") == "B"

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            if self._counts_bytes:
                furthest[0] = max(furthest[0], int(self.n))
                furthest[1] = max(furthest[1], int(self.total or 0))
                progress(*furthest)
            return None

    return Bar
