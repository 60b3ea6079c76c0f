"""The loader's settings. Nothing else in it reads arguments."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """One model onto one volume."""

    model: str = setting(
        "",
        "hf://ORG/NAME or s3://BUCKET/PREFIX; with /FILE.gguf behind it, that file alone.",
    )
    revision: str = setting(
        "",
        "Branch, tag or commit of a hub model, empty takes its main branch; of a bucket the "
        "revision that an earlier manifest names, empty takes what is there.",
    )
    target: str = setting(
        "", "Folder of the model; appears when it is whole. Its parent has to exist."
    )
    keep: tuple[str, ...] = setting(
        (),
        "Names of folders beside the target that stay when the model does not fit: then other "
        "models that a loader brought there are removed, the oldest first. Empty removes none.",
    )
    verify: bool = setting(
        False,
        "Hash a model that is already there instead of comparing sizes only; what is damaged is "
        "loaded again.",
    )
    connections: int = setting(4, "Files that are loaded at once.", minimum=1, maximum=64)
    give_up_s: float = setting(
        300.0,
        "Time that a file may stand still, retries included, before the loader ends.",
        unit="s",
        minimum=0,
    )
    check_etags: bool = setting(
        True,
        "Take an S3 ETag that looks like an MD5 for one. In buckets encrypted with KMS or customer "
        "keys it is none.",
    )
    termination_log: str = setting(
        "",
        "File that gets the error as one JSON object; empty takes /dev/termination-log where it "
        "exists.",
    )
