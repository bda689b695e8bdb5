"""Tokens to text as it grows: every complete character at once, never part of one, never part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """Text that may be sent now. `stop` is the stop string that ended the output, and then this is the last text."""

    text: str
    stop: str | None = None


class Detokenizer:
    """Text of one output.

    token_bytes gives the bytes of a token id (b"" for one that is not shown). Works on bytes because tokens do not end
    where characters do: four tokens may hold two characters, and the first is complete after two of them.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], stop: Sequence[str] = (), *, include_stop: bool = False
    ) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._held = ""

    def push(self, token: int, *, check_stop: bool = True) -> Piece:
        """Add one token. Text is held back only while it may still grow into a stop string.

        check_stop False (before `min_tokens`) sends everything: what is sent can no longer be part of a stop string.
        """
        return self._take(self._decoder.decode(self._token_bytes(token)), check_stop)

    def finish(self) -> Piece:
        """The output has ended by itself: everything held, an unfinished character as U+FFFD."""
        piece = self._take(self._decoder.decode(b"", final=True), check_stop=True)
        held, self._held = self._held, ""
        return piece if piece.stop is not None else Piece(piece.text + held)

    def _take(self, text: str, check_stop: bool) -> Piece:
        text = self._held + text
        self._held = ""
        if not check_stop:
            return Piece(text)
        found = min(((at, i) for i, stop in enumerate(self._stop) if (at := text.find(stop)) >= 0), default=None)
        if found is not None:
            at, stop = found[0], self._stop[found[1]]
            return Piece(text[: at + len(stop)] if self._include_stop else text[:at], stop)
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return Piece(text[: len(text) - keep])


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
