"""Log-probabilities in the two shapes of the protocol."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from vtk.llm_serving.sampling.sampler import Sampled

if TYPE_CHECKING:
    from vtk.llm_serving.tokenizer.tokenizer import Tokenizer


class TopLogprob(TypedDict):
    """A token that could have come."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the output with the likeliest ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """One entry a token."""

    content: list[TokenLogprob]


class CompletionLogprobs(TypedDict):
    """Lists of one length, one entry a token. text_offset: where the token's text begins in the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


LOWEST = -9999.0  # for a probability of 0, as OpenAI writes it: JSON has no infinity


def chat_logprobs(tokens: Sequence[Sampled], tokenizer: Tokenizer, count: int) -> ChatLogprobs:
    """count: how many alternatives were asked for."""
    return {"content": [_token_logprob(sampled, tokenizer, count) for sampled in tokens]}


def _token_logprob(sampled: Sampled, tokenizer: Tokenizer, count: int) -> TokenLogprob:
    top = [_entry(token, logprob, tokenizer) for token, logprob in sampled.top[:count]]
    entry = _entry(sampled.token, sampled.logprob, tokenizer)
    return {"token": entry["token"], "logprob": entry["logprob"], "bytes": entry["bytes"], "top_logprobs": top}


def _entry(token: int, logprob: float | None, tokenizer: Tokenizer) -> TopLogprob:
    data = tokenizer.token_bytes(token)
    return {"token": _text(data), "logprob": _finite(logprob), "bytes": list(data)}


class CompletionLogprobsWriter:
    """The lists for one choice, piece by piece: the offsets go on from one piece to the next.

    hidden: tokens that are not part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, count: int, *, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._count = count
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def write(self, tokens: Sequence[Sampled]) -> CompletionLogprobs:
        """The next tokens of the choice."""
        lists: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for sampled in tokens:
            data = self._tokenizer.token_bytes(sampled.token)
            lists["tokens"].append(_name(data))
            lists["token_logprobs"].append(None if sampled.logprob is None else _finite(sampled.logprob))
            lists["top_logprobs"].append(self._top(sampled))
            lists["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(b"" if sampled.token in self._hidden else data))
        return lists

    def write_prompt(self, text: str, ids: Sequence[int], logprobs: Sequence[Sampled | None]) -> CompletionLogprobs:
        """The tokens of an echoed prompt, whose text the choice begins with; the first has no log-probability."""
        tokens = [sampled or Sampled(token) for token, sampled in zip(ids, logprobs, strict=True)]
        lists = self.write(tokens)
        # Some tokenizers put a space before a text, which is not part of it.
        surplus = self._offset - len(text)
        lists["text_offset"] = [max(0, offset - surplus) for offset in lists["text_offset"]]
        self._offset = len(text)
        return lists

    def _top(self, sampled: Sampled) -> dict[str, float] | None:
        """The likeliest tokens and the one that came."""
        if sampled.logprob is None:
            return None
        pairs = [*sampled.top[: self._count], (sampled.token, sampled.logprob)]
        return {_name(self._tokenizer.token_bytes(token)): _finite(logprob) for token, logprob in pairs}


def _text(data: bytes) -> str:
    r"""The text of a token; one that holds part of a character is written as OpenAI does: \xf0\x9f."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)


def _name(data: bytes) -> str:
    """As `_text`, and marked where it is no text: names of different tokens must differ."""
    text = _text(data)
    return text if text.encode() == data else f"bytes:{text}"


def _finite(logprob: float | None) -> float:
    return LOWEST if logprob is None else max(logprob, LOWEST)
