"""Token ids to text by increments: whole characters only, and nothing of a stop string.

All of it is a function of the ids, so a choice that was preempted or moved to another engine is
replayed and goes on in mid-word. Knows nothing of sampling or of when else a choice ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenizers import Tokenizer

from octavo.engine.request import StopParams

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MAX_OPEN_CHARS: Final = 3
"""A character of four bytes lacks its end for three: one replacement each, at most."""
_CONTEXT_TOKENS: Final = 8
"""Enough for a character that is spread over tokens, and for the decoders' rules on spaces."""
_WINDOW_TOKENS: Final = 16
_LONGEST_WINDOW_TOKENS: Final = 64
"""Where text that the decoder takes back is no longer waited for."""
_MAX_ID: Final = 2**32 - 1


class TextStream:
    """Ids to characters, each as soon as no later id can change it.

    Decodes a short window that begins with known text, instead of the library's own stream: that
    one repeats a prompt that ends inside a character, raises on text that does not grow by
    appending, and withholds invalid bytes for ever.
    """

    def __init__(
        self, decoder: Tokenizer, prompt_ids: Sequence[int], *, skip_special: bool
    ) -> None:
        self._decoder = decoder
        self._skip_special = skip_special
        size = _CONTEXT_TOKENS
        self._ids = list(prompt_ids[-size:])
        self._shown = self._decode(self._ids)
        # Begin neither inside a character nor, as decoders strip there, at the start of a text.
        while size < len(prompt_ids) and (not self._shown or self._shown[0] == _REPLACEMENT):
            size *= 2
            self._ids = list(prompt_ids[-size:])
            self._shown = self._decode(self._ids)
        # The prompt's text without a character at its end that the output may complete.
        self._whole = self._shown
        for missing in range(1, _MAX_OPEN_CHARS + 1):
            if self._whole.endswith(_REPLACEMENT):
                self._whole = self._decode(self._ids[:-missing])

    def push(self, token_id: int) -> str:
        """Appends an id and returns the text that is now certain; any id is welcome."""
        if not 0 <= token_id <= _MAX_ID:
            return ""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        settled = _settled(text)
        if settled == self._shown and not self._decode([token_id]):
            self._ids.pop()  # Special or unknown: it would only fill the window.
            return ""
        start = len(self._shown)
        if not settled.startswith(self._shown):
            if len(settled) < len(text) and len(self._ids) < _LONGEST_WINDOW_TOKENS:
                return ""
            # Either the prompt ended inside a character that is now complete, or the decoder
            # has changed its mind about text that is out already; then only length counts.
            start = len(self._whole) if settled.startswith(self._whole) else start
        self._shown = self._whole = settled
        self._shorten(text)
        return settled[start:]

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Appends the last ids of a text and returns all that is left; decodes once."""
        self._ids += [i for i in token_ids if 0 <= i <= _MAX_ID]
        text = self._decode(self._ids)
        start = len(self._shown)
        if not text.startswith(self._shown) and text.startswith(self._whole):
            start = len(self._whole)  # The prompt ended inside a character that is now complete.
        self._shown = self._whole = text
        return text[start:]

    def flush(self) -> str:
        """Returns what is left, an incomplete character as U+FFFD."""
        text = self._decode(self._ids)
        start, self._shown = len(self._shown), text
        return text[start:]

    def _shorten(self, text: str) -> None:
        """Drops old ids from a window that has grown long, if the rest reads the same alone."""
        held = len(text) - len(self._shown)
        if len(self._ids) < _WINDOW_TOKENS:
            return
        # Of four neighbouring places one is between two characters.
        for size in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _MAX_OPEN_CHARS + 1):
            tail_text = self._decode(self._ids[-size:])
            if len(tail_text) > held and text.endswith(tail_text):
                self._ids = self._ids[-size:]
                self._shown = self._whole = tail_text[: len(tail_text) - held]
                return

    def _decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=self._skip_special)


def _settled(text: str) -> str:
    """Cuts off the end that may be the beginning of an incomplete character."""
    end = len(text)
    while end > max(0, len(text) - _MAX_OPEN_CHARS) and text[end - 1] == _REPLACEMENT:
        end -= 1
    return text[:end]


class StopMatcher:
    """Finds one stop string in a text that arrives in pieces (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        """Length of the longest beginning of the stop string with which the text now ends."""
        # Entry i belongs to the first i + 1 characters: how much of them is still matched when the
        # next one is not. Grown with the longest match, so that long strings cost nothing.
        self._fallback = [0]

    def feed(self, text: str, *, counts: bool) -> int | None:
        """Returns how many characters of text complete the stop string, or None.

        An occurrence that is completed in text that does not count is passed over.
        """
        if self.matched == 0 and self.stop[0] not in text:
            return None
        for position, char in enumerate(text, start=1):
            self.matched = self._extend(self.matched, char)
            if self.matched > len(self._fallback):
                self._fallback.append(self._extend(self._fallback[-1], char))
            if self.matched == len(self.stop):
                if counts:
                    return position
                self.matched = self._fallback[-1]
        return None

    def _extend(self, length: int, char: str) -> int:
        while length and self.stop[length] != char:
            length = self._fallback[length - 1]
        return length + 1 if self.stop[length] == char else 0


class Detokenizer:
    """The text of one choice, up to its first stop string."""

    def __init__(
        self,
        decoder: Tokenizer,
        prompt_ids: Sequence[int],
        stop: StopParams,
        *,
        output_ids: Sequence[int] = (),
        chars_sent: int = 0,
        skip_special: bool = True,
    ) -> None:
        """Replays output_ids, of whose text another attempt has sent chars_sent characters."""
        self.matched: str | None = None
        """The stop string that has ended the text."""
        self.chars_released = chars_sent
        """Characters (code points) handed out, those of earlier attempts included."""
        self._stream = TextStream(decoder, prompt_ids, skip_special=skip_special)
        self._stops = [StopMatcher(text) for text in stop.stop_strings]
        self._include_stop = stop.include_in_output
        self._min_tokens = stop.min_tokens
        self._num_tokens = 0
        self._held = ""
        self._ready = ""
        for token_id in output_ids:
            self._advance(token_id, visible=True)
        self._to_skip = max(0, chars_sent - len(self._ready))
        self._ready = self._ready[chars_sent:]

    def push(self, token_id: int, *, visible: bool = True) -> str:
        """Appends a token and returns the text that may be shown now.

        An invisible token, one that ends the choice, counts but has no text. After a match
        nothing more comes.
        """
        self._advance(token_id, visible=visible)
        return self._take()

    def push_all(self, token_ids: Sequence[int]) -> str:
        """Returns the rest of the text, of which these are the last ids, at the cost of one decode.

        Only without stop strings, for which the place of each token in the text counts.
        """
        assert not self._stops
        self._ready += self._stream.push_all(token_ids)
        return self._take()

    def flush(self) -> str:
        """Returns the rest when the choice has ended; a rest can still complete a stop string."""
        if self.matched is None:
            self._scan(self._stream.flush())
        if self.matched is None:
            self._ready += self._held
            self._held = ""
        return self._take()

    def _advance(self, token_id: int, *, visible: bool) -> None:
        self._num_tokens += 1
        if visible and self.matched is None:
            self._scan(self._stream.push(token_id))

    def _scan(self, text: str) -> None:
        """Moves text on to `_ready`, but for an end that could become a stop string."""
        if not self._stops:
            self._ready += text
            return
        counts = self._num_tokens > self._min_tokens
        first: tuple[int, str] | None = None
        for matcher in self._stops:
            end = matcher.feed(text, counts=counts)
            if end is not None and (first is None or end < first[0]):
                first = (end, matcher.stop)
        if first is not None:
            end, self.matched = first
            shown = self._held + text[:end]
            self._ready += shown if self._include_stop else shown[: -len(self.matched)]
            self._held = ""
            return
        self._held += text
        free = len(self._held) - max(matcher.matched for matcher in self._stops)
        self._ready += self._held[:free]
        self._held = self._held[free:]

    def _take(self) -> str:
        text = self._ready[self._to_skip :]
        self._to_skip -= len(self._ready) - len(text)
        self._ready = ""
        self.chars_released += len(text)
        return text
