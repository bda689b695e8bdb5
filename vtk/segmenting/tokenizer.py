"""CLIP's tokenizer: from a prompt to the token ids that the text encoder was trained on.

Source: `SimpleTokenizer` of the official CLIP code and `CLIPTokenizer` of transformers, which this one equals. The
official code of SAM3 also undoes HTML escapes and wrongly decoded UTF-8 (ftfy), and cuts off what is too long; here a
prompt is taken as it is written, and refused when the model would not read all of it.
"""

from __future__ import annotations

import heapq
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vtk.errors import BundleError, UsageError

VOCABULARY_FILE = "vocab.json"
MERGES_FILE = "merges.txt"
START = "<|startoftext|>"
END = "<|endoftext|>"
WORD_END = "</w>"
CONTRACTIONS = ("'re", "'ve", "'ll", "'s", "'t", "'m", "'d")

_SPECIAL = re.compile(f"({re.escape(START)}|{re.escape(END)})")
# Unicode's White_Space; str.isspace also counts the separators U+001C to U+001F
_SPACES = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(0x2000 + i) for i in range(11)}

Pair = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Tokens:
    """One prompt as the text encoder takes it: (1, L) int64 each; attention_mask is 1 at tokens, 0 at padding."""

    input_ids: npt.NDArray[np.int64]
    attention_mask: npt.NDArray[np.int64]


class ClipTokenizer:
    """Byte pairs over lower-case words; a prompt is put between the start and the end token."""

    def __init__(self, vocabulary: Mapping[str, int], merges: Sequence[Pair], *, context_length: int) -> None:
        """vocabulary: id by token. merges: the most frequent pair first. context_length: tokens of every input."""
        self._vocabulary = vocabulary
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._context_length = context_length
        self._start, self._end = vocabulary[START], vocabulary[END]

    def __call__(self, text: str) -> Tokens:
        """Padded with the end token. Raises UsageError for a prompt that is too long: its rest would not be read."""
        ids = [self._start, *self.encode(text), self._end]
        if len(ids) > self._context_length:
            raise UsageError(
                f"The prompt '{text[:60]}…' has {len(ids) - 2} tokens; this model reads {self._context_length - 2}.",
                hint="Name the thing in a few words, as in 'yellow school bus'.",
            )
        input_ids = np.full((1, self._context_length), self._end, np.int64)
        input_ids[0, : len(ids)] = ids
        return Tokens(input_ids, (np.arange(self._context_length) < len(ids)).astype(np.int64)[None])

    def encode(self, text: str) -> list[int]:
        """Ids without start and end."""
        ids: list[int] = []
        for part in _SPECIAL.split(text):
            if part in (START, END):
                ids.append(self._vocabulary[part])
                continue
            for word in _words(_normalized(part)):
                ids += [self._vocabulary[token] for token in self._merged(word)]
        return ids

    def _merged(self, word: str) -> list[str]:
        """The bytes of a word, joined pair by pair: always the pair of the lowest rank, the leftmost of equal ones."""
        tokens = [_BYTE_CHARACTERS[byte] for byte in word.encode("utf-8", "surrogatepass")]
        tokens[-1] += WORD_END
        following = list(range(1, len(tokens) + 1))
        preceding = list(range(-1, len(tokens) - 1))
        waiting: list[tuple[int, int, Pair]] = []

        def consider(left: int) -> None:
            right = following[left] if left >= 0 else len(tokens)
            if right < len(tokens) and (rank := self._ranks.get((tokens[left], tokens[right]))) is not None:
                heapq.heappush(waiting, (rank, left, (tokens[left], tokens[right])))

        for place in range(len(tokens)):
            consider(place)
        while waiting:
            _, left, pair = heapq.heappop(waiting)
            right = following[left]
            if right >= len(tokens) or (tokens[left], tokens[right]) != pair:
                continue
            tokens[left], tokens[right] = "".join(pair), ""
            following[left] = following[right]
            if following[left] < len(tokens):
                preceding[following[left]] = left
            consider(preceding[left])
            consider(left)
        return [token for token in tokens if token]


def read_tokenizer(folder: Path, *, context_length: int) -> ClipTokenizer:
    """From `vocab.json` and `merges.txt`. Raises BundleError when they are not there or not a tokenizer of CLIP."""
    try:
        data = json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8"))
        vocabulary = {token: int(index) for token, index in data.items()}
        merges = parse_merges((folder / MERGES_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise BundleError(
            f"The tokenizer in {folder} cannot be read: {error}.", hint="Export the checkpoint again."
        ) from error
    if problem := tokenizer_problem(vocabulary, merges):
        raise BundleError(f"The tokenizer in {folder} is not CLIP's: {problem}.", hint="Export the checkpoint again.")
    return ClipTokenizer(vocabulary, merges, context_length=context_length)


def parse_merges(text: str) -> list[Pair]:
    """Pairs from lines `a b` after a `#version` line. Raises ValueError for other lines."""
    pairs: list[Pair] = []
    for line in text.split("\n"):
        if line and not line.startswith("#version"):
            first, second = line.split(" ")
            pairs.append((first, second))
    return pairs


def build_vocabulary(merges: Sequence[Pair]) -> dict[str, int]:
    """Ids by token as CLIP numbers them: bytes, bytes that end a word, merges, start, end."""
    characters = list(_BYTE_CHARACTERS.values())
    tokens = [*characters, *(f"{c}{WORD_END}" for c in characters), *("".join(pair) for pair in merges), START, END]
    return {token: index for index, token in enumerate(tokens)}


def tokenizer_problem(vocabulary: Mapping[str, int], merges: Sequence[Pair]) -> str | None:
    """Why some text could not be tokenized with these, or None."""
    needed = [START, END, *_BYTE_CHARACTERS.values(), *(f"{c}{WORD_END}" for c in _BYTE_CHARACTERS.values())]
    missing = [token for token in (*needed, *("".join(pair) for pair in merges)) if token not in vocabulary]
    return (
        f"its vocabulary lacks {missing[0]!r}" + (f" and {len(missing) - 1} more" * bool(missing[1:]))
        if missing
        else None
    )


def _normalized(text: str) -> str:
    """Composed, and lower-case letter by letter: a final sigma is one like all others."""
    return "".join(character.lower() for character in unicodedata.normalize("NFC", text))


def _words(text: str) -> Iterator[str]:
    """Runs of letters, single digits, contractions, and runs of what else is not white space."""
    start = 0
    while start < len(text):
        if text[start] in _SPACES:
            start += 1
        elif special := _SPECIAL.match(text, start):  # was written in capitals: three words, and no token of its own
            yield from (special[0][:2], special[0][2:-2], special[0][-2:])
            start = special.end()
        else:
            end = start + _word_length(text, start)
            yield text[start:end]
            start = end


def _word_length(text: str, start: int) -> int:
    for contraction in CONTRACTIONS:
        if text.startswith(contraction, start):
            return len(contraction)
    kind = _kind(text[start])
    if kind == "N":
        return 1
    end = start + 1
    while end < len(text) and _kind(text[end]) == kind:
        end += 1
    return end - start


def _kind(character: str) -> str:
    """L letter, N number, Z white space, S anything else."""
    if character in _SPACES:
        return "Z"
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "S"


def _byte_characters() -> dict[int, str]:
    """A printable character for every byte, in CLIP's order: those that are printable stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_BYTE_CHARACTERS = _byte_characters()
