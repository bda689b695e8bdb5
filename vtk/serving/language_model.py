"""A language model that any number of tasks may ask: prompts on a thread pool, steps on the engine's own thread."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.errors import BackendError, OverloadedError
from vtk.generations import Generations
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.async_engine import AsyncEngine
from vtk.llm_serving.engine import Delta, Generation
from vtk.llm_serving.engine_loop import EngineLoop
from vtk.llm_serving.load import LoadedEngine
from vtk.llm_serving.loading.source import ModelInfo
from vtk.llm_serving.prompts import Prompt
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer
from vtk.serving.arbiter import Arbiter

_NUM_WORKERS = 2
_SHORTEST = 1e-12  # as in torch.nn.functional.normalize


class LanguageModel:
    """An engine with its thread; its steps take turns at the arbiter's device.

    max_queued: requests that may wait beside the `max_num_seqs` that run; beyond them the answer is OverloadedError.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        args: EngineArgs,
        arbiter: Arbiter,
        *,
        name: str,
        version: str = "1",
        max_queued: int = 256,
    ) -> None:
        self.name = name
        self.version = version
        self.loaded = loaded
        self.args = args
        self.info: ModelInfo = loaded.info
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.max_model_len = loaded.max_model_len
        self.backend = loaded.runner.backend
        self.loop = EngineLoop(loaded.engine, cpus=args.cpus, turns=arbiter.language())
        self._engine = AsyncEngine(self.loop)
        self._generations = Generations(loaded)
        self._pool = ThreadPoolExecutor(_NUM_WORKERS, f"vtk-prompts-{name}")
        self._max_open = args.max_num_seqs + max_queued
        self._lock = threading.Lock()
        self._num_open = 0
        self._embeddings = itertools.count()

    @property
    def num_open(self) -> int:
        """Requests in preparation, in the queue or running."""
        return self._num_open

    async def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        queue_timeout: float | None = None,
    ) -> Generation:
        """A checked request for `stream`: whatever can be wrong with it is raised here, before an answer begins.

        Raises RequestError for one that can never be served, OverloadedError when the queue is full.
        """
        make = partial(
            self._generations.make, request_id, prompt, params,
            tools=tools, priority=priority, cache_salt=cache_salt, queue_timeout=queue_timeout,
        )  # fmt: skip
        with self._lock:
            if self._num_open >= self._max_open:
                raise OverloadedError(f"{self._num_open} requests are open already; the limit is {self._max_open}.")
        with self._counted():
            generation = await asyncio.get_running_loop().run_in_executor(self._pool, make)
        self.loop.check(generation)
        return generation

    async def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """The deltas as they come. Closing the generator, or cancelling its task, frees the request within one step."""
        with self._counted():
            async with aclosing(self._engine.stream(generation)) as deltas:
                async for delta in deltas:
                    yield delta

    async def embed(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """(hidden_size,) the mean over tokens of the last hidden state after the final norm, at length 1.

        The tokens share steps and KV blocks with everybody else's. Raises RequestError for ids that the model has not,
        for none, and for more than max_model_len - 1; OverloadedError; BackendError for what is no numbers.
        """
        params = SamplingParams(max_tokens=1, temperature=0.0)
        name = f"embed-{next(self._embeddings)}"
        prepared = await self.prepare(list(ids), params, request_id=name)
        generation = Generation(name, prepared.prompt, params, embed=True)
        async with aclosing(self.stream(generation)) as deltas:
            async for delta in deltas:
                if delta.embedding is not None:
                    return _normalized(delta.embedding)
        raise BackendError("The request for an embedding was dropped.")

    def close(self) -> None:
        """Stop the engine and free the model; live requests fail."""
        self.loop.close()
        self._pool.shutdown()
        self.loaded.runner.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._num_open += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_open -= 1


def _normalized(embedding: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    length = float(np.linalg.norm(embedding))
    if not math.isfinite(length):
        raise BackendError(
            "The model's hidden states are not numbers: its weights are damaged, or what it computed overflowed."
        )
    return np.asarray(embedding / max(length, _SHORTEST), np.float32)
