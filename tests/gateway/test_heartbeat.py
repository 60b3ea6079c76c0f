from octavo.gateway.heartbeat import SUSPECT_AFTER_S, TICK_S, Silence


def ticks_until_suspect(silence: Silence, now: float, step: float) -> int:
    for count in range(1, 1000):
        now += step
        if silence.tick(now):
            return count
    raise AssertionError("never suspect")


def test_three_silent_seconds_make_suspect() -> None:
    assert ticks_until_suspect(Silence(10.0), 10.0, TICK_S) == SUSPECT_AFTER_S / TICK_S


def test_any_message_starts_anew() -> None:
    silence = Silence(0.0)
    for i in range(1, 100):
        if i % 10 == 0:
            silence.heard()
        assert not silence.tick(i * TICK_S)


def test_time_in_which_the_gateway_was_blocked_is_not_held_against_the_engine() -> None:
    silence = Silence(0.0)
    assert not silence.tick(60.0)
    assert ticks_until_suspect(silence, 60.0, TICK_S) == (SUSPECT_AFTER_S - 2 * TICK_S) / TICK_S


def test_a_loop_that_is_merely_slow_still_suspects() -> None:
    assert ticks_until_suspect(Silence(0.0), 0.0, 1.0) == SUSPECT_AFTER_S / (2 * TICK_S)
