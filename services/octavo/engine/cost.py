"""What a step costs, learnt from those that ran: time per prompt token and per decode step."""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.1
"""Of a new observation in the moving average: the last twenty or so steps count."""


@dataclass(slots=True)
class CostModel:
    """Moving averages; zero until something was observed."""

    prefill_us_per_token: float = 0.0
    decode_us_per_step: float = 0.0

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
