from __future__ import annotations

from starlette.exceptions import HTTPException

from octavo.gateway.api.errors import error_headers, error_object, from_starlette
from octavo.v1.errors import CATALOGUE, INVALID_VALUE, QUEUE_FULL, OctavoError


def test_the_object_has_what_clients_match_on_and_our_own_code() -> None:
    made = error_object(OctavoError(INVALID_VALUE, param="n", reason="is odd"))
    assert made == {
        "message": "n: is odd",
        "type": "invalid_request_error",
        "param": "n",
        "code": "invalid_value",
        "octavo": {"code": "OCT-1002", "help": INVALID_VALUE.help},
    }


def test_param_is_null_when_no_field_is_at_fault() -> None:
    error = OctavoError(QUEUE_FULL, queued=1, limit=1, unit="requests", retry_after_ms=1)
    assert error_object(error)["param"] is None
    assert dict(error_headers(error))[b"retry-after"] == b"1"


def test_every_kind_of_the_catalogue_has_a_status_that_http_knows() -> None:
    assert all(400 <= kind.status < 600 for kind in CATALOGUE.values())


def test_other_http_exceptions_are_missing_routes() -> None:
    error = from_starlette(HTTPException(404), path="/x" * 500, method="GET")
    assert error.kind.status == 404
    assert len(error.message) < 300
