"""Bits of `ModelCard.features`: behaviour that a peer may or may not have."""

from __future__ import annotations

FEATURE_RESUME = 1
"""GenerateRequest.resumes is understood."""

FEATURE_STATE_EVENTS = 2
"""The state stream has KV events."""

FEATURE_BEAM = 4
"""GenerateRequest.beam is understood."""
