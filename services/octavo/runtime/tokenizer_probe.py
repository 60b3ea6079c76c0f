"""The strings that two tokenizers must encode alike before one may stand in for the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

_PIECES: Final = (
    "Hello, world!",
    " leading and trailing ",
    "line\nbreaks\r\n\n\n  indented\ttabs\t\t",
    "don't I'll we've they'd IT'S can\u2019t",
    "1 12 123 1234567890 3.14159 1,000,000 0x1F \u00bd \u2460",
    "CamelCase snake_case kebab-case SCREAMING_CASE a.b.c()",
    "def f(x: int) -> int:\n    return x ** 2  # square\n",
    '{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9\\n"}}',
    "| a | b |\n|---|---|\n| **x** | `y` |\n\n- [ ] item\n> quote",
    "https://example.org/a/b?c=d&e=%20#f user@example.org",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u8fd9\u662f\u4e00\u4e2a\u6d4b\u8bd5\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0417\u0434\u0440\u0430",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u05e9\u05dc\u05d5\u05dd \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\u010f\u00e1belsk\u00e9 \u00fcber na\u00efve \u0141\u00f3d\u017a e\u0301 A\u030a",
    "\U0001f44b\U0001f3fd \U0001f468\u200d\U0001f469 \u2764\ufe0f \U0001f1e9\U0001f1ea",
    "\u00a0nbsp\u2003em\u200bzero\u2028line\ufeffbom",
    "\x00\x01\x1b[31mred\x7f",
    "\u221ax\u00b2 \u2264 \u03b1\u03b2\u03b3 \u2211 \u222b \ufb01 \uff21\uff22\uff23 \u2163",
    "!!!???...---___***///\\\\\\===<<<>>>|||",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa        b",
    "<|not_a_token|> </s> <s> <think>x</think> [INST]",
)


def probe_texts(specials: Sequence[str]) -> Iterator[str]:
    """Yields several hundred texts of all kinds, control tokens at their edges included."""
    yield ""
    yield from _PIECES
    for i, piece in enumerate(_PIECES):
        for other in _PIECES[i % 3 :: 3]:
            yield f"{piece}{other}"
    for special in specials[:32]:
        for piece in _PIECES[::4]:
            yield f"{special}user\n{piece} {special}\n{special}{piece}"
    for code in (*range(0x80, 0x3000, 97), *range(0x1F300, 0x1FA00, 61)):
        yield f"x{chr(code)} {chr(code + 1)}{chr(code)}"
    yield " ".join(_PIECES) * 3
