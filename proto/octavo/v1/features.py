"""Bits of `ModelCard.features`: behaviour that a peer may or may not have."""

from __future__ import annotations

FEATURE_RESUME = 1
"""GenerateRequest.resumes is understood."""

FEATURE_STATE_EVENTS = 2
"""The state stream has KV events."""

FEATURE_PRIORITY = 4
"""GenerateRequest.priority may be other than zero."""

FEATURE_BEAM = 8
"""GenerateRequest.beam is understood."""
