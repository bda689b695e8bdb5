"""One of the n sequences of a request while it is made: it takes what steps compute and turns it into deltas."""

from __future__ import annotations

from vtk.llm_serving.core.request import FinishReason, Request, Status
from vtk.llm_serving.generation import Delta, Generation, Vocabulary
from vtk.llm_serving.pooling import MeanPool
from vtk.llm_serving.runner.base import HiddenStates, Logits
from vtk.llm_serving.sampling.detokenizer import Detokenizer
from vtk.llm_serving.sampling.sampler import Sampled, new_state, with_logprobs
from vtk.llm_serving.stats import Timeline


class LiveSequence:
    """Sequence `index` of a generation. The scheduler owns its `request`, the engine steps its `sampler`."""

    def __init__(
        self, generation: Generation, index: int, request: Request, vocabulary: Vocabulary, hidden_size: int
    ) -> None:
        params = generation.params
        unseen = vocabulary.special_ids if params.skip_special_tokens else frozenset[int]()
        self.generation = generation
        self.index = index
        self.request = request
        self.sampler = new_state(
            params,
            request.prompt,
            request.output,
            index=index,
            forbidden=tuple(sorted(request.stop_ids)),
            mask=None if generation.mask is None else generation.mask(),
        )
        self._detokenizer = Detokenizer(
            lambda token: b"" if token in unseen else vocabulary.token_bytes(token),
            params.stop_strings,
            include_stop=params.include_stop_str_in_output,
        )
        self._eos_ids = vocabulary.eos_ids
        self._is_new = True
        self._sampled: list[Sampled] = []
        self._prompt_logprobs: list[Sampled | None] | None = None if params.prompt_logprobs is None else [None]
        self._pooled = MeanPool(hidden_size, len(request.prompt)) if generation.embed else None

    @property
    def wants_every_row(self) -> bool:
        """The logits of all its tokens are needed, not of the last known one alone."""
        return self._prompt_logprobs is not None

    @property
    def wants_hidden(self) -> bool:
        """The last hidden states of its prompt are needed."""
        return self._pooled is not None

    @property
    def has_first_token(self) -> bool:
        """The next delta brings the first token."""
        return self._is_new and bool(self._sampled)

    @property
    def failure(self) -> str | None:
        """Why it was given up: by its grammar, or because there is nothing to draw from."""
        mask = self.sampler.mask
        return self.sampler.failure or (None if mask is None else mask.failure)

    def take_hidden(self, rows: HiddenStates) -> None:
        """The last hidden states of the tokens of a step, (T, hidden_size)."""
        if self._pooled is not None:
            self._pooled.add(self.request.num_computed, rows)

    def take_logits(self, rows: Logits) -> None:
        """Logits of a step, (S, vocab_size): of all its tokens, each predicting the one after it, or of the last."""
        kept, prompt = self._prompt_logprobs, self.request.prompt
        if kept is None:
            return
        for following, row in enumerate(rows, self.request.num_computed + 1):
            if following == len(kept) and following < len(prompt):
                kept.append(with_logprobs(row, prompt[following], self.generation.params.prompt_logprobs or 0))

    def take_token(self, token: Sampled) -> None:
        self._sampled.append(token)

    def take_delta(self, timeline: Timeline | None) -> Delta:
        """What came since the last delta. Its finish_reason is the last word: a stop string is found only here."""
        has_first_token, is_first = self.has_first_token, self._is_new
        tokens, self._sampled, self._is_new = tuple(self._sampled), [], False
        text, stop = self._text(tokens)
        reason = FinishReason.STOP if isinstance(stop, str) else self.request.finish_reason
        if self.failure is not None:
            reason, stop = FinishReason.ABORT, self.failure
        return Delta(
            self.generation.request_id,
            self.index,
            tokens,
            text,
            reason,
            stop,
            self.request.num_cached or 0,
            tuple(self._prompt_logprobs) if is_first and self._prompt_logprobs is not None else None,
            timeline,
            self._pooled.mean() if has_first_token and self._pooled is not None else None,
        )

    def _text(self, tokens: tuple[Sampled, ...]) -> tuple[str, str | int | None]:
        """The text that the tokens add, and the stop string or stop token that ended it."""
        request, params = self.request, self.generation.params
        text = ""
        for token in tokens:
            if request.finish_reason is FinishReason.STOP and not params.include_stop_str_in_output:
                is_eos = token.token in self._eos_ids
                return text + self._detokenizer.finish().text, None if is_eos else token.token
            piece = self._detokenizer.push(token.token, check_stop=len(request.output) >= params.min_tokens)
            text += piece.text
            if piece.stop is not None:
                return text, piece.stop
        if request.status is Status.FINISHED:
            piece = self._detokenizer.finish()
            return text + piece.text, piece.stop
        return text, None
