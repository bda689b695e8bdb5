"""Text to token ids and back over a `tokenizers` model, with the bytes of every token."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import tokenizers

from vtk.errors import CheckpointError, RequestError
from vtk.llm_serving.generation import Vocabulary
from vtk.llm_serving.tokenizer.chat_template import NO_VARIABLES, ChatTemplate

METASPACE = "▁"
MAX_TOKEN_ID = 1 << 24
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest for U+0100 onward.

    Source: GPT-2's published encoder.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class Tokenizer:
    """One model's tokenizer. Safe to share between threads.

    eos_ids end an output. bos_id is the token that starts a text, where the model has one; whether `encode` adds it is
    the tokenizer's own rule. max_tokens: of the model's context; a text that is longer, whatever its tokens, is refused
    before it is split into them.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Iterable[int],
        bos_id: int | None = None,
        template: ChatTemplate | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self._backend = backend
        self.bos_id = bos_id
        self.template = template
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.eos_ids = frozenset(eos_ids)
        # The decoder's own JSON: `to_str` of the tokenizer would write its whole vocabulary too.
        decoder = "none" if backend.decoder is None else backend.decoder.__getstate__().decode()
        self._decode_token = _token_decoder(decoder)
        self._adds_space = '"Strip"' in decoder or ('"Metaspace"' in decoder and '"never"' not in decoder)
        self._bytes = self._token_table({index: token.content for index, token in added.items()})
        self._max_characters = None if max_tokens is None else max_tokens * max(map(len, self._bytes), default=0)

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return len(self._bytes)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids. add_special_tokens adds what the tokenizer says and nothing else: often nothing, at most once."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError("invalid_request", "The text holds half a surrogate pair; send valid UTF-8.") from error
        if self._max_characters is not None and len(text) > self._max_characters:
            raise RequestError(
                "context_length_exceeded",
                f"The text has {len(text)} characters; the longest tokens would fill the model's context with "
                f"{self._max_characters}.",
                hint="Shorten the prompt.",
            )
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD."""
        hidden = self.special_ids if skip_special_tokens else frozenset[int]()
        text = b"".join(self.token_bytes(token) for token in ids if token not in hidden).decode(errors="replace")
        return text.removeprefix(" ") if self._adds_space else text

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes that a token stands for, often part of a character; b"" for ids that no token has."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """A conversation as the model's own template writes it. RequestError where there is none or it refuses."""
        if self.template is None:
            raise RequestError(
                "invalid_request",
                "The model has no chat template.",
                hint="Send plain prompts to completions, or take an instruction-tuned model.",
            )
        return self.template.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
        )

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Token ids of a rendered conversation; the template's text holds every special token already."""
        return self.encode(self.render_chat(messages, tools=tools), add_special_tokens=False)

    def vocabulary(self) -> Vocabulary:
        """What the engine asks of a tokenizer."""
        return Vocabulary(self.token_bytes, self.eos_ids, self.special_ids)

    def _token_table(self, added: Mapping[int, str]) -> tuple[bytes, ...]:
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        if (largest := max(vocabulary.values(), default=-1)) > MAX_TOKEN_ID:
            raise CheckpointError(f"The tokenizer has a token {largest}; vtk serves ids up to {MAX_TOKEN_ID}.")
        table = [b""] * (largest + 1)
        for text, index in vocabulary.items():
            table[index] = added[index].encode() if index in added else self._decode_token(text)
        return tuple(table)


def _token_decoder(decoder: str) -> Callable[[str], bytes]:
    """How token texts map to bytes, as the decoder says: byte-level BPE or SentencePiece's visible spaces."""
    if '"ByteLevel"' in decoder:
        return partial(_decode_byte_level, byte_alphabet())
    if METASPACE in decoder:
        return _decode_metaspace
    raise CheckpointError(
        f"The tokenizer's decoder is not one that vtk knows: {decoder[:80]}.",
        hint="vtk serves byte-level BPE and SentencePiece tokenizers.",
    )


def _decode_byte_level(alphabet: Mapping[str, int], text: str) -> bytes:
    """Each character is a byte; one outside the alphabet stands for itself."""
    return b"".join(bytes([alphabet[char]]) if char in alphabet else char.encode() for char in text)


def _decode_metaspace(text: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else text.replace(METASPACE, " ").encode()
