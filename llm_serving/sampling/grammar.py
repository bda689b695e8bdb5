"""Outputs that follow a grammar: xgrammar says which tokens may come next, and the sampler masks the others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import xgrammar

from vtk.errors import RequestError
from vtk.llm_serving.sampling.json_schema import check_regex, check_schema
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.sampling.sampler import Row, TokenMask
from vtk.llm_serving.sampling.structured import StructuredOutputsParams
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

CACHE_BYTES = 64 << 20
MAX_SECONDS = 0.05  # of computing for one token; a microsecond is usual
MAX_WHITESPACE = 16  # in a row between the tokens of JSON: room to indent, but not for ever


class GrammarMask:
    """Where one output stands in its grammar. At the end only a token that ends the output is left.

    An ambiguous grammar takes ever longer from token to token, on the thread that serves everybody: the output is given
    up before that hurts. A grammar may also lead where no token follows.
    """

    def __init__(self, compiled: xgrammar.CompiledGrammar, vocab_size: int) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bits = np.zeros((1, -(-vocab_size // 32)), np.int32)
        self._vocab_size = vocab_size
        self.failure: str | None = None

    def allowed(self) -> npt.NDArray[np.bool_]:
        """(vocab_size,) which tokens may come next."""
        self._matcher.fill_next_token_bitmask(self._bits)
        bits = np.unpackbits(self._bits[0].view(np.uint8), count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def apply(self, row: Row) -> None:
        """Set the logits of forbidden tokens to -inf, in place."""
        allowed = self.allowed()
        if not allowed.any():
            self.failure = "no token follows in the grammar"
            allowed[self._matcher.stop_token_ids] = True
        row[~allowed] = -np.inf

    def accept(self, token: int) -> None:
        """Advance past a sampled token."""
        started = time.thread_time()
        accepted = self._matcher.accept_token(token)
        assert accepted or self.failure is not None, f"token {token} was sampled against the grammar"
        if time.thread_time() - started > MAX_SECONDS and not self._matcher.is_terminated():
            self.failure = "the grammar is too ambiguous"


class GrammarCompiler:
    """Grammars for one vocabulary; what was compiled lately is kept. Safe to share between threads.

    vocab_size is the width of the logits, which may exceed the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        # Without bytes a special token is never part of an output, whatever its name would spell.
        shown = [b"" if i in tokenizer.special_ids else tokenizer.token_bytes(i) for i in range(vocab_size)]
        info = xgrammar.TokenizerInfo(
            shown, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=sorted(tokenizer.eos_ids)
        )
        self._has_end = bool(tokenizer.eos_ids)
        self._vocab_size = vocab_size
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)

    def compile(self, params: SamplingParams) -> Callable[[], TokenMask]:
        """What makes the grammar's state for each of the n outputs.

        Raises RequestError for a grammar that is wrong or would not be enforced as written, and for parameters that
        contradict it.
        """
        spec = params.structured_outputs
        assert spec is not None
        if not self._has_end:
            raise RequestError("invalid_grammar", "The model has no token that ends an output: no grammar can end it.")
        if params.ignore_eos or params.min_tokens:
            raise RequestError("invalid_grammar", "With structured_outputs the grammar says where the output ends.")
        compiled = self._compile(spec)
        if not GrammarMask(compiled, self._vocab_size).allowed().any():
            raise RequestError("invalid_grammar", "The grammar cannot be used: no text follows it.")
        return lambda: GrammarMask(compiled, self._vocab_size)

    def _compile(self, spec: StructuredOutputsParams) -> xgrammar.CompiledGrammar:
        try:
            if spec.json is not None:
                return self._compile_schema(spec.schema_text())
            if spec.json_object:
                return self._compile_schema('{"type": "object"}', strict=False)
            if spec.structural_tag is not None:
                return self._compiler.compile_structural_tag(spec.structural_tag)
            if spec.regex is not None:
                check_regex(spec.regex, "regex")
                return self._compiler.compile_regex(spec.regex)
            return self._compiler.compile_grammar(spec.grammar or _choice(spec.choice or ()))
        # What xgrammar raises for all that it cannot parse; the second where its message cuts a character in two.
        except (RuntimeError, UnicodeDecodeError) as error:
            raise RequestError("invalid_grammar", f"The grammar cannot be used: {_reason(error)}") from error

    def _compile_schema(self, text: str, *, strict: bool = True) -> xgrammar.CompiledGrammar:
        check_schema(text)
        return self._compiler.compile_json_schema(text, strict_mode=strict, max_whitespace_cnt=MAX_WHITESPACE)


def _choice(strings: tuple[str, ...]) -> str:
    """EBNF of one of the strings, each quoted as JSON quotes it."""
    return "root ::= " + " | ".join(json.dumps(string, ensure_ascii=False) for string in strings)


def _reason(error: RuntimeError | UnicodeDecodeError) -> str:
    """The message without xgrammar's time stamp and source line."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not what xgrammar can parse."
    first = (str(error).strip() or "xgrammar does not say why.").splitlines()[0]
    return first.split(": ", 1)[-1][:300] if first.startswith("[") else first[:300]
