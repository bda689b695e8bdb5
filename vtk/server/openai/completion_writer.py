"""Deltas as choices of plain completions, whole or in chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from vtk.llm_serving.engine import Delta
from vtk.llm_serving.results import GenerationResult
from vtk.llm_serving.sampling.sampler import Sampled
from vtk.server.openai.logprobs import CompletionLogprobs, CompletionLogprobsWriter
from vtk.server.openai.responses import Completion, CompletionChoice
from vtk.server.openai.session import Session

_PLAIN_END = ',"logprobs":null,"finish_reason":null}'


class CompletionWriter:
    """Writes n choices for each prompt, numbered through.

    echoed: the texts of the prompts, which then begin each choice. is_echo_only: the one token that the engine had to
    sample is left out. num_logprobs: alternatives to report, None for no log-probabilities.
    """

    object_name = "text_completion"

    def __init__(
        self, session: Session, *, echoed: Sequence[str] | None, is_echo_only: bool, num_logprobs: int | None
    ) -> None:
        self._session = session
        self._echoed = echoed
        self._is_echo_only = is_echo_only
        self._num_logprobs = num_logprobs
        self._n = session.generations[0].params.n
        self._logprobs = [self._new_logprobs() for _ in range(self._n * len(session.generations))]
        self._prompt_logprobs: dict[int, tuple[Sampled | None, ...]] = {}
        self._is_new = [True] * len(self._logprobs)

    def opening(self) -> Iterator[str]:
        """Nothing: the first text comes first."""
        return iter(())

    def choices(self, which: int, delta: Delta) -> Iterator[str]:
        """What the delta adds; the first of a choice begins with the prompt where that is echoed."""
        index = which * self._n + delta.index
        if self._num_logprobs is None and self._echoed is None and delta.finish_reason is None:
            if delta.text:
                yield f'{{"index":{index},"text":{json.dumps(delta.text, ensure_ascii=False)}{_PLAIN_END}'
            return
        self._prompt_logprobs[which] = delta.prompt_logprobs or self._prompt_logprobs.get(which, ())
        text, logprobs = self._echo(which, index) if self._is_new[index] else ("", None)
        self._is_new[index] = False
        if not self._is_echo_only:
            text += delta.text
            logprobs = self._add(logprobs, index, delta.tokens)
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}
        if delta.finish_reason is not None:
            choice |= {"finish_reason": delta.finish_reason.value, "stop_reason": delta.stop_reason}
        if text or logprobs or delta.finish_reason is not None:
            yield json.dumps(choice, ensure_ascii=False, separators=(",", ":"))

    def whole(self, results: Sequence[GenerationResult]) -> Completion:
        """The answer when everything has come."""
        session = self._session
        return {
            "id": session.request_id,
            "object": "text_completion",
            "created": session.created,
            "model": session.name,
            "choices": [choice for which, result in enumerate(results) for choice in self._choices(which, result)],
            "usage": session.usage(),
        }

    def _choices(self, which: int, result: GenerationResult) -> Iterator[CompletionChoice]:
        self._prompt_logprobs[which] = result.prompt_logprobs or ()
        for output in result.outputs:
            index = which * self._n + output.index
            text, logprobs = self._echo(which, index)
            if not self._is_echo_only:
                text += output.text
                logprobs = self._add(logprobs, index, output.logprobs or ())
            yield {
                "index": index,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": output.finish_reason,
                "stop_reason": output.stop_reason,
            }

    def _echo(self, which: int, index: int) -> tuple[str, CompletionLogprobs | None]:
        if self._echoed is None:
            return "", None
        text, writer = self._echoed[which], self._logprobs[index]
        if writer is None:
            return text, None
        prompt = self._session.generations[which].prompt
        return text, writer.write_prompt(text, prompt, self._prompt_logprobs[which])

    def _add(
        self, before: CompletionLogprobs | None, index: int, tokens: Sequence[Sampled]
    ) -> CompletionLogprobs | None:
        writer = self._logprobs[index]
        if writer is None:
            return None
        added = writer.write(tokens)
        if before is None:
            return added
        return {
            "tokens": before["tokens"] + added["tokens"],
            "token_logprobs": before["token_logprobs"] + added["token_logprobs"],
            "top_logprobs": before["top_logprobs"] + added["top_logprobs"],
            "text_offset": before["text_offset"] + added["text_offset"],
        }

    def _new_logprobs(self) -> CompletionLogprobsWriter | None:
        if self._num_logprobs is None:
            return None
        tokenizer = self._session.model.tokenizer
        hides = self._session.generations[0].params.skip_special_tokens
        hidden = tokenizer.special_ids if hides else frozenset[int]()
        return CompletionLogprobsWriter(tokenizer, self._num_logprobs, hidden=hidden)
