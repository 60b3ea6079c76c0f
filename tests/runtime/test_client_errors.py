from __future__ import annotations

import socket
from collections.abc import Callable

import httpx
import httpx2
import pytest

from octavo.runtime.client_errors import text_of

SECRET = "hf_canary"


@pytest.mark.parametrize("get", [httpx.get, httpx2.get])
def test_a_header_that_cannot_be_sent_is_not_repeated(get: Callable[..., object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Exception, match=SECRET) as caught:
            get(url, headers={"Authorization": f"Bearer {SECRET}\n"}, trust_env=False)
    assert text_of(caught.value) == "a header of the request has characters that cannot be sent"


def test_an_error_is_told_in_its_own_words_or_by_its_name() -> None:
    assert text_of(httpx.ConnectError("connection refused")) == "connection refused"
    assert text_of(TimeoutError()) == "TimeoutError"
