from __future__ import annotations

from octavo.v1 import engine_pb2, limits


def test_every_limit_is_a_positive_number_but_the_floor() -> None:
    values = {n: v for n, v in vars(limits).items() if n.isupper()}
    assert values.pop("LOGPROB_FLOOR") < 0
    assert "developer" not in values.pop("CHAT_ROLES"), "the gateway makes it a system message"
    assert values
    assert all(value > 0 for value in values.values()), values


def test_limits_fit_the_fields_that_carry_them() -> None:
    request = engine_pb2.GenerateRequest(
        n=limits.MAX_N, max_queue_ms=limits.MAX_MS, logprobs=limits.MAX_LOGPROBS
    )
    request.sampling.seed = limits.MAX_SEED
    again = engine_pb2.GenerateRequest.FromString(request.SerializeToString())
    assert again.sampling.seed == limits.MAX_SEED
    assert again.max_queue_ms == limits.MAX_MS


def test_file_piece_fits_into_a_message_of_grpc() -> None:
    assert limits.MAX_FILE_PIECE_BYTES < 4 * 1024 * 1024


def test_raised_temperature_is_not_greedy() -> None:
    assert limits.GREEDY_TEMPERATURE < limits.MIN_TEMPERATURE < limits.MAX_TEMPERATURE
