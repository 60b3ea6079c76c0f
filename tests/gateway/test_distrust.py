from __future__ import annotations

import pytest

from octavo.gateway.distrust import distrust

TO = "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.1.0.1:50051"


@pytest.mark.parametrize(
    "failure",
    [
        f"{TO}: connect: Connection refused (111)",
        "UNAVAILABLE: Socket closed",
        "UNAVAILABLE: keepalive timeout",
        "CANCELLED: closed",
    ],
)
def test_what_is_no_matter_of_trust_is_left_alone(failure: str) -> None:
    """Whatever is known of the gateway's own certificate."""
    assert distrust(failure, "") == ""
    assert distrust(failure, "it ended") == ""


def test_the_gateway_s_own_certificate_is_named_where_it_is_bad() -> None:
    assert distrust(f"{TO}: Socket closed", "it ended") == (
        "the engine does not trust the gateway's certificate, or was just ended; "
        "the gateway's certificate is of no use: it ended"
    )


def test_the_engine_s_own_words_are_for_the_log_alone() -> None:
    failure = "PERMISSION_DENIED: the caller's certificate bears a, not b"
    assert distrust(failure, "") == "the engine does not trust the gateway's certificate"
