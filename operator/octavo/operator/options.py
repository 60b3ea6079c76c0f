"""The engine's own options that `spec.engine.options` has, and the settings that they become.

Bounds are those of the engine's settings; a contract test compares them. There are no defaults
here: an option that is not given is left to the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from octavo.operator import quantity
from octavo.operator.kinds import Manifest
from octavo.operator.structural import amount, choice, number, switch, whole

_MANY: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option."""

    field: str
    """Its name in the resource."""
    setting: str
    """The engine's setting."""
    schema: Manifest

    @property
    def flag(self) -> str:
        """The engine's flag."""
        return "--" + self.setting.replace("_", "-")

    @property
    def is_quantity(self) -> bool:
        """Whether its value is a quantity, and the engine's a whole number."""
        return "x-kubernetes-int-or-string" in self.schema

    def arguments(self, value: object) -> list[str]:
        """Returns the engine's arguments for a valid value."""
        if isinstance(value, bool):
            return [self.flag if value else "--no-" + self.flag[2:]]
        if self.is_quantity:
            return [self.flag, str(math.ceil(quantity.parse(value) or 0))]
        return [self.flag, str(value)]


OPTIONS: Final = (
    Option(
        field="dtype",
        setting="dtype",
        schema=choice("Compute type.", "bfloat16", "float32"),
    ),
    Option(
        field="maxModelLen",
        setting="max_model_len",
        schema=whole("Tokens of prompt and output of one choice; 0: what fits.", most=_MANY),
    ),
    Option(
        field="maxNumSeqs",
        setting="max_num_seqs",
        schema=whole("Choices that run at once.", least=1, most=1024),
    ),
    Option(
        field="maxBatchedTokens",
        setting="max_batched_tokens",
        schema=whole("Tokens of one step.", least=16, most=65536),
    ),
    Option(
        field="stepTargetSeconds",
        setting="step_target_s",
        schema=number("Time for the prompt chunks of a step; 0: no bound.", least=0, most=3600),
    ),
    Option(
        field="longPrefillTokens",
        setting="long_prefill_tokens",
        schema=whole("Largest prompt chunk while others run.", least=16, most=_MANY),
    ),
    Option(
        field="memoryFraction",
        setting="memory_fraction",
        schema=number("Share of the free memory for the KV cache.", least=0.01, most=0.95),
    ),
    Option(
        field="kvBytes",
        setting="kv_bytes",
        schema=amount("Size of the KV cache instead, such as 4Gi."),
    ),
    Option(
        field="preemptionMode",
        setting="preemption_mode",
        schema=choice("What becomes of preempted requests.", "auto", "swap", "recompute"),
    ),
    Option(
        field="prefixCaching",
        setting="prefix_caching",
        schema=switch("Whether KV blocks of common prefixes are used again."),
    ),
    Option(
        field="pinBudget",
        setting="pin_budget",
        schema=number("Share of the blocks for pinned prefixes.", least=0, most=0.9),
    ),
    Option(
        field="watermark",
        setting="watermark",
        schema=number("Share of the blocks kept free at admission.", least=0, most=0.5),
    ),
    Option(
        field="schedulingPolicy",
        setting="scheduling_policy",
        schema=choice(
            "Order in which waiting requests are let in.", "priority", "fcfs", "shortest", "fair"
        ),
    ),
    Option(
        field="ageingSecondsPerToken",
        setting="ageing_s_per_token",
        schema=number(
            "Under the policy shortest: waiting that outweighs a token.", least=1e-6, most=60
        ),
    ),
    Option(
        field="maxPreemptions",
        setting="max_preemptions",
        schema=whole("Times that a request may lose its blocks; 0: no bound.", most=_MANY),
    ),
    Option(
        field="maxOutputTokens",
        setting="max_output_tokens",
        schema=whole("Tokens that a choice gets at most; 0: no bound.", most=_MANY),
    ),
    Option(
        field="threads",
        setting="threads",
        schema=whole("Threads of a step; 0: what the CPU limit allows.", most=1024),
    ),
    Option(
        field="maxQueuedRequests",
        setting="max_queued_requests",
        schema=whole("Requests beyond which new ones get 503.", least=1, most=_MANY),
    ),
    Option(
        field="maxQueuedTokens",
        setting="max_queued_tokens",
        schema=whole("Waiting prompt tokens beyond which it is so.", least=1, most=_MANY),
    ),
    Option(
        field="verifyModel",
        setting="verify_model",
        schema=switch("Whether the model's files are hashed before they are used."),
    ),
    Option(
        field="watchdogSeconds",
        setting="watchdog_s",
        schema=number("A longer step ends the engine; 0: never.", least=0, most=86400),
    ),
)
"""All of them, in the order of the arguments."""

OURS: Final = (
    "--model", "--revision", "--served-name", "--listen", "--plaintext", "--no-plaintext",
    "--metrics-listen", "--drain-s", "--report-fd", "--config", "--tls-dir",
    "--tls-client", "--host-cache-bytes",
    "--disk-cache-dir", "--disk-cache-bytes", "--pin-prefix",
)  # fmt: skip
"""Flags that the operator sets, or that mean nothing in a pod; not for `extraArgs`."""


def arguments(options: Mapping[str, object]) -> list[str]:
    """Returns the engine's arguments for the options that are given."""
    return [
        argument
        for option in OPTIONS
        if option.field in options
        for argument in option.arguments(options[option.field])
    ]
