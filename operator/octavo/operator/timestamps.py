"""The time stamps of Kubernetes, such as 2026-11-30T03:20:00Z, as Unix seconds and back."""

from __future__ import annotations

from datetime import UTC, datetime


def to_text(unix_s: float) -> str:
    """Returns the time stamp, in whole seconds."""
    return datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_text(text: object) -> float | None:
    """Returns the Unix time; None for what is no time stamp."""
    try:
        stamp = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return stamp.timestamp() if stamp.tzinfo else None


def age_s(text: object, now: float) -> float:
    """Returns how long ago a time stamp was: zero for the future, and for what is none."""
    stamp = from_text(text)
    return 0.0 if stamp is None else max(0.0, now - stamp)
