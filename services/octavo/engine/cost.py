"""What a step costs, learnt from those that ran: time per prompt token and per decode step."""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.1
"""Of a new observation in the moving average: the last twenty or so steps count."""

_FIRST_TOKENS = 64
"""A first step that takes some seconds on the slowest machine that would be used."""
_LEAST_TOKENS = 32
"""Smaller chunks waste the weights that each step reads."""


@dataclass(slots=True)
class CostModel:
    """Moving averages; zero until something was observed."""

    prefill_us_per_token: float = 0.0
    decode_us_per_step: float = 0.0
    copy_us_per_block: float = 0.0
    """Of a block between device and host, as measured at the start."""

    def step_tokens(self, target_s: float) -> int:
        """Returns the tokens whose computation takes about `target_s`.

        A step is the grain of everything: of the gap between a neighbour's tokens, of an abort, of
        the heartbeat. So its length is bounded in time, not only in tokens.
        """
        if self.prefill_us_per_token == 0.0:
            return _FIRST_TOKENS
        return max(int(target_s * 1e6 / self.prefill_us_per_token), _LEAST_TOKENS)

    def observe(self, *, prefill_tokens: int, rows: int, seconds: float) -> None:
        """Learns from one step.

        Args:
            prefill_tokens: tokens of rows with more than one token.
            rows: rows of the step.
            seconds: how long it took.
        """
        us = seconds * 1e6
        if prefill_tokens == 0:
            self.decode_us_per_step = self._blend(self.decode_us_per_step, us)
        elif prefill_tokens >= rows:
            # The decode rows that ride along cost about what a step without prompts does.
            extra = max(us - self.decode_us_per_step, us / 2)
            self.prefill_us_per_token = self._blend(
                self.prefill_us_per_token, extra / prefill_tokens
            )

    @staticmethod
    def _blend(old: float, new: float) -> float:
        return new if old == 0.0 else old + _WEIGHT * (new - old)
