"""The catalogue of errors: one table for HTTP body, gRPC message, log, command line and docs.

    OctavoError                 carries one ErrorKind of the table, its numbers and its param
      └ kinds 10xx  the request is at fault            kinds 12xx  the start-up failed
        kinds 20xx  the service cannot serve it now    kinds 50xx  the service broke

Code, HTTP status, type and help never depend on who raises; only the message's numbers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from octavo.v1 import common_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorKind:
    """One row of the catalogue."""

    code: str
    """Stable identifier, OCT-nnnn."""
    name: str
    """The `code` of OpenAI's error body, which clients match on."""
    status: int
    """HTTP status."""
    message: str
    """Sentence with {placeholders}."""
    help: str
    """One action that the reader can take."""
    type: str = "invalid_request_error"
    """The `type` of OpenAI's error body."""
    exit_code: int = 5
    """1 negative, 2 usage, 3 cannot reach, 4 does not fit, 5 internal, 71 and 72 device."""


_SERVER = "server_error"
_UNAVAILABLE = "service_unavailable_error"


def _request(code: str, name: str, message: str, help: str, status: int = 400) -> ErrorKind:
    return ErrorKind(code=code, name=name, status=status, message=message, help=help, exit_code=2)


INVALID_JSON: Final = _request(
    "OCT-1001",
    "invalid_json",
    "the body is not valid JSON: {reason}",
    "send one JSON object in UTF-8",
)
INVALID_VALUE: Final = _request(
    "OCT-1002", "invalid_value", "{param}: {reason}", "see the documented range of this field"
)
UNSUPPORTED_PARAMETER: Final = _request(
    "OCT-1003",
    "unsupported_parameter",
    "{param} is not supported: {reason}",
    "leave it out; it would change the answer, so it is not ignored",
)
CONTEXT_LENGTH_EXCEEDED: Final = _request(
    "OCT-1004",
    "context_length_exceeded",
    "This model's maximum context length is {limit} tokens, but the request has {tokens} tokens."
    " Please reduce the length of the messages.",
    "shorten the prompt; it is never cut in silence",
)
TOKEN_OUT_OF_VOCABULARY: Final = _request(
    "OCT-1005",
    "invalid_value",
    "{param}: token id {token} is out of vocabulary (size {vocab})",
    "ids come from this model's own tokenizer: see /tokenize",
)
REQUEST_TOO_LARGE: Final = _request(
    "OCT-1006",
    "request_too_large",
    "the body is larger than {limit} bytes",
    "send less",
    status=413,
)
MODEL_NOT_FOUND: Final = _request(
    "OCT-1007",
    "model_not_found",
    "the model '{model}' does not exist; served: {served}{closest}",
    "use one of the served names: see /v1/models",
    status=404,
)
NEVER_FITS: Final = _request(
    "OCT-1008",
    "request_never_fits",
    "the request needs {needed} KV blocks at once, the engine has {total}",
    "shorten the prompt, lower max_tokens or n, or start the engine with more KV memory",
)
ROUTE_NOT_FOUND: Final = _request(
    "OCT-1009",
    "not_found",
    "there is nothing at {path}",
    "see the list of endpoints in the docs",
    404,
)
METHOD_NOT_ALLOWED: Final = _request(
    "OCT-1010", "method_not_allowed", "{path} does not take {method}", "use {allowed}", status=405
)
ORIGIN_NOT_ALLOWED: Final = _request(
    "OCT-1011",
    "origin_not_allowed",
    "requests with {header} '{value}' are not accepted",
    "add the host with --allowed-host or the page's origin with --cors-origin",
    status=403,
)
RECORD_NOT_FOUND: Final = _request(
    "OCT-1012",
    "request_not_found",
    "there is no record of request '{id}'",
    "records expire",
    status=404,
)
NESTED_TOO_DEEP: Final = _request(
    "OCT-1013",
    "invalid_value",
    "the body is nested deeper than {limit} levels",
    "send flatter JSON",
)
BODY_TIMEOUT: Final = _request(
    "OCT-1014",
    "body_timeout",
    "the body came too slowly: {received} bytes so far",
    "send the body in one go",
    status=408,
)
IDEMPOTENCY_KEY_REUSED: Final = _request(
    "OCT-1015",
    "idempotency_key_reused",
    "this {param} belongs to a request with another body",
    "use a new key for each request, and the same one only to repeat it unchanged",
    status=422,
)
ANSWER_NOT_KEPT: Final = _request(
    "OCT-1016",
    "answer_not_kept",
    "the answer of this {param} was too large, or memory too short, to keep it",
    "send the request under a new key, or without one",
    status=409,
)
PIN_NOT_FOUND: Final = _request(
    "OCT-1017",
    "pin_not_found",
    "there is no pin '{pin}'",
    "it has expired, was unpinned or went with a reset of the cache: see ListPins",
    status=404,
)

PORT_IN_USE: Final = ErrorKind(
    code="OCT-1201",
    name="port_in_use",
    status=500,
    message="port {port} on {host} is taken",
    help="choose another with --port, or end what listens there",
    exit_code=3,
)
MODEL_NOT_AT_HAND: Final = ErrorKind(
    code="OCT-1202",
    name="model_not_at_hand",
    status=500,
    message="the model '{model}' is not here: {reason}",
    help="give a folder with safetensors, a .gguf file, a hub id, or one of: {known}",
    exit_code=3,
)
MODEL_UNREADABLE: Final = ErrorKind(
    code="OCT-1203",
    name="model_unreadable",
    status=500,
    message="the model at {path} cannot be read: {reason}",
    help="Octavo reads safetensors and GGUF of the Llama family; nothing else is opened",
)
DOES_NOT_FIT: Final = ErrorKind(
    code="OCT-1204",
    name="does_not_fit",
    status=500,
    message="the model does not fit: {needs}; free {free}",
    help="lower --max-model-len, set --kv-bytes, or free memory",
    exit_code=4,
)
BAD_SETTING: Final = ErrorKind(
    code="OCT-1205",
    name="bad_setting",
    status=500,
    message="{key} = {value!r} ({origin}): {reason}",
    help="octavo config show --origin prints every setting and where it comes from",
    exit_code=2,
)
UNKNOWN_SETTING: Final = ErrorKind(
    code="OCT-1206",
    name="unknown_setting",
    status=500,
    message="there is no setting {key} ({origin}){closest}",
    help="octavo config show lists all settings",
    exit_code=2,
)
STORE_UNREACHABLE: Final = ErrorKind(
    code="OCT-1207",
    name="store_unreachable",
    status=500,
    message="Redis at {url} does not answer: {reason}",
    help="check the address, or leave --redis out for an embedded Valkey",
    exit_code=3,
)
ENGINE_DID_NOT_START: Final = ErrorKind(
    code="OCT-1208",
    name="engine_did_not_start",
    status=500,
    message="engine {engine} ended while starting: {reason}",
    help="its log has the cause: {log}",
)
ENDPOINT_UNREACHABLE: Final = ErrorKind(
    code="OCT-1209",
    name="endpoint_unreachable",
    status=500,
    message="nothing answers at {url}: {reason}",
    help="start it with: octavo serve",
    exit_code=3,
)
PROCESS_ENDED: Final = ErrorKind(
    code="OCT-1210",
    name="process_ended",
    status=500,
    message="{process} ended: {reason}",
    help="its log has the cause: {log}",
)
BAD_USAGE: Final = ErrorKind(
    code="OCT-1211",
    name="bad_usage",
    status=500,
    message="{reason}",
    help="{command} --help says what it takes",
    exit_code=2,
)
MODEL_FORBIDDEN: Final = ErrorKind(
    code="OCT-1212",
    name="model_forbidden",
    status=500,
    message="{place} refuses {model}: {reason}",
    help="give HF_TOKEN, or AWS credentials, that may read it; a gated model's page says how",
    exit_code=1,
)
MODEL_MISSING: Final = ErrorKind(
    code="OCT-1213",
    name="model_missing",
    status=500,
    message="{place} has no {model}: {reason}",
    help="check name and revision; a private model needs HF_TOKEN or AWS credentials",
    exit_code=1,
)
SOURCE_UNREACHABLE: Final = ErrorKind(
    code="OCT-1214",
    name="source_unreachable",
    status=500,
    message="{place} does not give {model}: {reason}",
    help="start the loader again: it goes on where it ended",
    exit_code=3,
)
VOLUME_FULL: Final = ErrorKind(
    code="OCT-1215",
    name="volume_full",
    status=500,
    message="the volume at {path} is too small: {needs} needed, {free} free",
    help="make it larger or delete models from it; what is there of this one is kept",
    exit_code=4,
)
VOLUME_FAILED: Final = ErrorKind(
    code="OCT-1216",
    name="volume_failed",
    status=500,
    message="the volume at {path} cannot be used: {reason}",
    help="it has to be mounted, writable and healthy; then start the loader again",
)
MODEL_DAMAGED: Final = ErrorKind(
    code="OCT-1217",
    name="model_damaged",
    status=500,
    message="{place} sends {file} of {model} damaged, {times} times: {reason}",
    help="look at its copy; S3 buckets with KMS or customer keys need --no-check-etags",
)
TARGET_TAKEN: Final = ErrorKind(
    code="OCT-1218",
    name="target_taken",
    status=500,
    message="{path} holds {found}, not {wanted}",
    help="give another --target, or remove that folder when no engine uses it",
    exit_code=2,
)
DEVICE_FAILED: Final = ErrorKind(
    code="OCT-1220",
    name="device_failed",
    status=500,
    message="the device computes nothing more for this process: {reason}",
    help="a new process can use it again; its requests go on elsewhere",
    exit_code=71,
)
DEVICE_LOST: Final = ErrorKind(
    code="OCT-1221",
    name="device_lost",
    status=500,
    message="the device is lost or its memory is damaged: {reason}",
    help="reset or replace the device before anything is started on it again",
    exit_code=72,
)

MODEL_LOADING: Final = ErrorKind(
    code="OCT-2001",
    name="model_loading",
    status=503,
    message="the model is not ready yet: {stage}",
    help="try again after the time in Retry-After",
    type=_UNAVAILABLE,
    exit_code=3,
)
QUEUE_FULL: Final = ErrorKind(
    code="OCT-2002",
    name="queue_full",
    status=503,
    message="the queue is full: {queued} of {limit} {unit}",
    help="try again after the time in Retry-After",
    type=_UNAVAILABLE,
)
ENGINE_FAILURE: Final = ErrorKind(
    code="OCT-2003",
    name="engine_failure",
    status=502,
    message="the engine that served this request was lost",
    help="send the request again",
    type=_SERVER,
)
NO_ENGINE: Final = ErrorKind(
    code="OCT-2004",
    name="no_engine",
    status=503,
    message="no engine for '{model}' is reachable{why}",
    help="try again after the time in Retry-After",
    type=_UNAVAILABLE,
    exit_code=3,
)
DRAINING: Final = ErrorKind(
    code="OCT-2005",
    name="draining",
    status=503,
    message="the server is shutting down and takes no new requests",
    help="send the request again; another replica takes it",
    type=_UNAVAILABLE,
)
DEADLINE_EXCEEDED: Final = ErrorKind(
    code="OCT-2006",
    name="deadline_exceeded",
    status=504,
    message="the request's deadline of {limit_ms} ms has passed",
    help="allow more time or ask for less",
    type=_SERVER,
)
QUEUE_TIMEOUT: Final = ErrorKind(
    code="OCT-2007",
    name="queue_timeout",
    status=503,
    message="the request waited longer than its {limit_ms} ms in the queue",
    help="try again later, or raise max_queue_ms",
    type=_UNAVAILABLE,
)
SLOW_CLIENT: Final = ErrorKind(
    code="OCT-2008",
    name="slow_client",
    status=408,
    message="the answer was read too slowly: {waiting} of at most {limit} bytes were waiting",
    help="read the stream as it comes",
)
RECORD_UNAVAILABLE: Final = ErrorKind(
    code="OCT-2009",
    name="record_unavailable",
    status=503,
    message="the store of request records does not answer: {reason}",
    help="try again after the time in Retry-After",
    type=_UNAVAILABLE,
    exit_code=3,
)
OVERLOADED: Final = ErrorKind(
    code="OCT-2010",
    name="overloaded",
    status=429,
    message="the gateway has too much to do: {reason}",
    help="try again after the time in Retry-After",
    type="rate_limit_error",
)
PINS_FULL: Final = ErrorKind(
    code="OCT-2011",
    name="pins_full",
    status=429,
    message="the prefix needs {needed} more KV blocks, but {pinned} of the {budget} for pins are"
    " taken",
    help="unpin another prefix, or raise --pin-budget or --kv-bytes; requests of --max-model-len"
    " tokens must still fit beside all pins",
    type=_UNAVAILABLE,
)
REQUEST_FAILED: Final = ErrorKind(
    code="OCT-5001",
    name="request_failed",
    status=500,
    message="the engine could not compute this request",
    help="the log has the cause under the request's id",
    type=_SERVER,
)
QUEUE_STALLED: Final = ErrorKind(
    code="OCT-5003",
    name="queue_stalled",
    status=500,
    message="the engine had nothing else to do and could not start this request in {turns} turns",
    help="report it with the numbers that the engine's log has under queue_stalled",
    type=_SERVER,
)
INTERNAL: Final = ErrorKind(
    code="OCT-5002",
    name="internal_error",
    status=500,
    message="an unexpected error; it is in the log under id {id}",
    help="report it with the id",
    type=_SERVER,
)

CATALOGUE: Final[dict[str, ErrorKind]] = {
    k.code: k for k in list(globals().values()) if isinstance(k, ErrorKind)
}
"""Every kind by its code."""


class OctavoError(Exception):
    """An error of the catalogue, with its numbers filled in.

    Args:
        kind: the row of the catalogue.
        param: the field at fault, if a single one is.
        retry_after_ms: how long to wait before another try; zero when a retry is pointless.
        **values: what the message's placeholders stand for.
    """

    def __init__(
        self, kind: ErrorKind, *, param: str = "", retry_after_ms: int = 0, **values: object
    ) -> None:
        self.kind = kind
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.message = kind.message.format(param=param, **values)
        self.help = kind.help.format(param=param, **values)
        super().__init__(f"error[{kind.code}]: {self.message}")

    def to_proto(self) -> common_pb2.Error:
        """Returns the message that crosses octavo.v1."""
        return common_pb2.Error(
            code=self.kind.code,
            message=self.message,
            param=self.param,
            retry_after_ms=self.retry_after_ms,
        )

    @classmethod
    def from_proto(cls, error: common_pb2.Error) -> OctavoError:
        """Rebuilds the error of a peer; a code of a newer catalogue becomes an internal error."""
        self = cls.__new__(cls)
        self.kind = CATALOGUE.get(error.code, INTERNAL)
        self.param = error.param
        self.retry_after_ms = error.retry_after_ms
        self.message = error.message
        # The numbers of a help text do not travel, so one that has some cannot be shown.
        self.help = "" if "{" in self.kind.help else self.kind.help
        Exception.__init__(self, f"error[{error.code}]: {error.message}")
        return self
