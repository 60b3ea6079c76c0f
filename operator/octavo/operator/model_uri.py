"""Where a model comes from: the schemes of `spec.model.uri`, their patterns, and what they mean.

The patterns are part of the resource's schema too; RE2 and `re` read them alike. No segment of a
path begins with a dot, so none leads out of a volume.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Literal, cast

Scheme = Literal["hf", "s3", "pvc", "oci", "file"]

_SEGMENT: Final = "[A-Za-z0-9_@=+-][A-Za-z0-9._@=+-]*"
_FILE: Final = "[A-Za-z0-9_][A-Za-z0-9_.+-]{0,250}[.]gguf"
_HUB_PART: Final = "[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"

PATTERNS: Final[dict[Scheme, str]] = {
    "hf": f"hf://{_HUB_PART}/{_HUB_PART}(/{_FILE})?",
    "s3": f"s3://[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9](/{_SEGMENT})+",
    "pvc": f"pvc://[a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?(/{_SEGMENT})*",
    "oci": "oci://[A-Za-z0-9][A-Za-z0-9._:/@-]*",
    "file": f"file://(/{_SEGMENT})+",
}
"""What a whole URI of each scheme looks like."""

FORMS: Final[dict[Scheme, str]] = {
    "hf": "hf://ORGANISATION/NAME (and /FILE.gguf for one file)",
    "s3": "s3://BUCKET/PREFIX",
    "pvc": "pvc://CLAIM/PATH",
    "oci": "oci://IMAGE",
    "file": "file:///PATH",
}
"""The same for people."""

MAX_LENGTH: Final = 512

_REVISION_PART: Final = "[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}"
REVISION: Final = f"{_REVISION_PART}(/{_REVISION_PART}){{0,5}}"
MAX_REVISION: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUri:
    """A valid URI of a model."""

    text: str

    @property
    def scheme(self) -> Scheme:
        """The part before `://`."""
        return cast("Scheme", self.text.partition("://")[0])

    @property
    def is_loaded(self) -> bool:
        """Whether a Job fetches the model into a volume of the service."""
        return self.scheme in ("hf", "s3")

    @property
    def claim(self) -> str:
        """Name of the volume claim of a pvc:// model."""
        return self._rest.partition("/")[0]

    @property
    def image(self) -> str:
        """Image of an oci:// model."""
        return self._rest

    @property
    def path(self) -> str:
        """Path within a claim, or of a file; without a leading slash, and empty for an image."""
        return self._rest.partition("/")[2] if self.scheme in ("pvc", "file") else ""

    @property
    def file(self) -> str:
        """Name of the one GGUF file that is loaded; empty when all of the model is."""
        folders, _, last = self._rest.rpartition("/")
        is_one = self.is_loaded and (self.scheme == "s3" or "/" in folders)
        return last if is_one and re.fullmatch(_FILE, last) else ""

    @property
    def _rest(self) -> str:
        return self.text.partition("://")[2]

    def key(self, revision: str) -> str:
        """Returns 16 hexadecimal digits that stand for this model in names and paths."""
        return hashlib.blake2b(f"{self.text}\n{revision}".encode(), digest_size=8).hexdigest()


def parse(text: str) -> ModelUri | None:
    """Returns the URI; None when it has none of the forms."""
    if len(text) > MAX_LENGTH:
        return None
    is_valid = any(re.fullmatch(pattern, text) for pattern in PATTERNS.values())
    return ModelUri(text=text) if is_valid else None
