"""How long tests wait for what has to happen."""

from __future__ import annotations

EVENTUALLY_S = 120.0
"""For what takes a moment on an idle machine: a test machine may do much else. A bound that is met
costs nothing. Not for what would also happen without the code under test, only later."""
