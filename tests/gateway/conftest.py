"""Fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.gateway.valkey import Valkey

from octavo.gateway import claims


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


@pytest.fixture
def quick_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases and pauses a tenth as long."""
    monkeypatch.setattr(claims, "LEASE_S", 1)
    monkeypatch.setattr(claims, "RENEW_S", 0.2)
    monkeypatch.setattr(claims, "POLL_S", 0.02)
