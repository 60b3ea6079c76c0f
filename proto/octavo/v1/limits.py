"""The one table of limits that gateway and engine check."""

from __future__ import annotations

from typing import Final

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""HTTP body; a prompt of a million tokens as ids is about 8 MB."""
MAX_JSON_DEPTH: Final = 64
"""Nesting of the body, checked before any recursive parser sees it."""
MAX_N: Final = 128
"""Choices of one request (and never more than the engine's max_num_seqs)."""
MAX_LENGTH_PENALTY: Final = 5.0
"""Either way: the scores of the longest sequences stay well within float32."""
MAX_BEAM_TOKENS: Final = 16384
"""Output tokens that all choices of a beam search may have: they are sent at once, and must fit
into what a gateway may leave unread even when each token is a long run of dashes."""
MAX_PROMPTS: Final = 1024
"""Prompts in one completions request."""
MAX_LOGPROBS: Final = 20
"""Alternatives per position, as OpenAI's top_logprobs."""
MAX_STOP_STRINGS: Final = 64
MAX_STOP_CHARS: Final = 1024
"""Characters of one stop string: this much text may be held back."""
MAX_STOP_TOKEN_IDS: Final = 256
MAX_LOGIT_BIAS: Final = 1024
MAX_BAD_WORDS: Final = 1024
MAX_BAD_WORD_TOKENS: Final = 64
CHAT_ROLES: Final = ("system", "user", "assistant", "tool")
"""Roles that reach a template unguarded, so no others may."""
MAX_SALT_CHARS: Final = 256
MAX_FAIRNESS_KEY_CHARS: Final = 128
MAX_REQUEST_ID_CHARS: Final = 128
MAX_TEMPERATURE: Final = 2.0
MIN_TEMPERATURE: Final = 0.01
"""Smaller positive temperatures are raised to this; below GREEDY_TEMPERATURE is greedy."""
GREEDY_TEMPERATURE: Final = 1e-5
MAX_LOGIT_BIAS_VALUE: Final = 100.0
MIN_REPETITION_PENALTY: Final = 1e-3
MAX_REPETITION_PENALTY: Final = 1e3
"""Beyond these a logit would leave the range of float32."""
LOGPROB_FLOOR: Final = -9999.0
"""JSON has no minus infinity."""
MAX_SEED: Final = 2**63 - 1
MAX_PRIORITY: Final = 2**31 - 1
MAX_MS: Final = 2**31 - 1
"""Durations in milliseconds: 24 days."""
MAX_FILE_PIECE_BYTES: Final = 1024 * 1024
"""Bytes of one file piece of the model card; gRPC's own limit is 4 MB a message."""
