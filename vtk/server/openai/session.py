"""One request while it is served: the lease of its model, its generations, and what is measured of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from vtk.errors import RequestError
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Delta, Generation
from vtk.llm_serving.results import Collector, GenerationResult
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.server.context import ServerContext
from vtk.server.openai.errors import ParamError
from vtk.server.openai.feed import Arrived, Feed
from vtk.server.openai.responses import UsageBlock
from vtk.server.request_metrics import RequestTrace


class Session:
    """Iterates over what arrives, counting tokens on the way; `close` frees everything, however it ends.

    Raises NotFoundError and UnavailableError for the model's name.
    """

    def __init__(self, context: ServerContext, model: str, request_id: str) -> None:
        self.request_id = request_id
        self.created = int(time.time())
        self.name = model
        self.generations: list[Generation] = []
        self._started = time.monotonic()
        self._context = context
        self._lease = ExitStack()
        self.model = self._lease.enter_context(context.runtime.language(model))
        self._feed: Feed | None = None
        self._num_tokens = 0
        self._is_output_wanted = True
        self._num_cached: dict[int, int] = {}
        self._traces: list[RequestTrace] = []
        self._num_open: list[int] = []

    def check(self, params: SamplingParams, priority: int) -> None:
        """What depends on the model. Raises ParamError."""
        vocab_size = self.model.loaded.runner.vocab_size
        for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
            if wrong is not None:
                raise ParamError(name, f"Token ids of this model are 0 to {vocab_size - 1}; '{name}' has {wrong}.")
        policy = self.model.args.scheduling_policy
        if priority != 0 and policy != "priority":
            raise ParamError(
                "priority",
                f"The model is served by the policy '{policy}', which does not look at priorities.",
                hint="Start the server with --scheduling-policy priority.",
            )

    async def start(self, generations: Sequence[Generation], *, is_output_wanted: bool = True) -> None:
        """Hand the generations to the engine, and wait until something comes: a failure before that is raised here.

        is_output_wanted False: the one token that the engine has to make is no part of the usage.
        """
        self._is_output_wanted = is_output_wanted
        self.generations = list(generations)
        self._num_open = [generation.params.n for generation in generations]
        self._traces = [self._trace(generation) for generation in generations]
        self._feed = Feed(self.model, self.generations)
        await self._feed.wait()

    def __aiter__(self) -> Session:
        return self

    async def __anext__(self) -> Arrived:
        assert self._feed is not None, "not started"
        arrived = await self._feed.__anext__()
        for which, delta in arrived:
            self._count(which, delta)
        return arrived

    async def collect(self) -> list[GenerationResult]:
        """Everything that comes, put together, one result for each generation."""
        collectors = [Collector(generation, None) for generation in self.generations]
        async for arrived in self:
            for which, delta in arrived:
                collectors[which].add(delta)
        return [collector.result() for collector in collectors]

    def usage(self) -> UsageBlock:
        """Tokens so far."""
        prompt = sum(len(generation.prompt) for generation in self.generations)
        completion = self._num_tokens if self._is_output_wanted else 0
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached.values())},
        }

    async def close(self) -> None:
        """Drop what has not ended and let go of the model."""
        try:
            if self._feed is not None:
                await self._feed.close()
        finally:
            self._lease.close()
            for trace in self._traces:
                trace.finished(FinishReason.ABORT.value)  # no effect on those that have ended

    def _count(self, which: int, delta: Delta) -> None:
        self._num_tokens += len(delta.tokens)
        if delta.index == 0:
            self._num_cached[which] = delta.num_cached
        trace = self._traces[which]
        if delta.tokens:
            trace.first_token(delta.timeline)
            trace.token(len(delta.tokens), index=delta.index)
        if delta.finish_reason is not None:
            self._num_open[which] -= 1
            if self._num_open[which] == 0:
                trace.finished(delta.finish_reason.value)

    def _trace(self, generation: Generation) -> RequestTrace:
        trace = self._context.metrics.trace(model=self.name, request_id=generation.request_id)
        trace.received(self._started)
        trace.prepared(generation)
        return trace


def blamed(error: RequestError, prompt: str, form: str | None = None, *, which: int | None = None) -> RequestError:
    """The error of a request with the parameter that it is about: its prompt, or the form of its output.

    which: the number of the prompt, where there are several.
    """
    if error.code == "invalid_grammar":
        return ParamError(form or prompt, error.message, code=error.code, hint=error.hint)
    if isinstance(error, ParamError):
        return error
    message = error.message if which is None else f"Prompt {which}: {error.message}"
    return ParamError(prompt, message, code=error.code, hint=error.hint)
