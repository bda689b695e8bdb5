"""What one language request took, from its arrival to its last token, under vLLM's metric names and buckets.

Time to first token is taken apart into five parts that add up to it:

    received ─ tokenize ─▶ prepared ─ queue ─▶ scheduled ─ kv_allocation ─▶ allocated
        ─ prefill ─▶ computed ─ send ─▶ first token

The moments in the middle are the engine's (`Timeline`), on the same monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from vtk.llm_serving.engine import Generation
from vtk.llm_serving.stats import Timeline
from vtk.server.tracing import add_stage

TTFT_PARTS = ("tokenize", "queue", "kv_allocation", "prefill", "send")
# vLLM's buckets, vllm/v1/metrics/loggers.py.
_FIRST_TOKEN = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_BETWEEN_TOKENS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_SEQUENCES = (1, 2, 5, 10, 20)
# Allocating blocks takes microseconds, a cold prefill seconds.
_PARTS = (1e-5, 5e-5, 1e-4, 5e-4, *_FIRST_TOKEN)


class RequestMetrics:
    """The metrics that requests are observed in, one set for a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(name, text, ("model_name", *labels), buckets=buckets, registry=registry)

        self.first_token = histogram("vllm:time_to_first_token_seconds", "Time to first token.", _FIRST_TOKEN)
        self.part = histogram("vtk:ttft_part_seconds", "The parts of the time to first token.", _PARTS, "part")
        self.between = histogram(
            "vllm:inter_token_latency_seconds", "Time between two tokens of a sequence.", _BETWEEN_TOKENS
        )
        self.per_token = histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time per token after the first.", _BETWEEN_TOKENS
        )
        self.whole = histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", _REQUEST)
        self.queue = histogram("vllm:request_queue_time_seconds", "Time in the WAITING phase.", _REQUEST)
        self.inference = histogram("vllm:request_inference_time_seconds", "Time in the RUNNING phase.", _REQUEST)
        self.prefill = histogram("vllm:request_prefill_time_seconds", "Time in the PREFILL phase.", _REQUEST)
        self.decode = histogram("vllm:request_decode_time_seconds", "Time in the DECODE phase.", _REQUEST)
        self.prompt_tokens = histogram("vllm:request_prompt_tokens", "Tokens of the prompt.", _TOKENS)
        self.output_tokens = histogram("vllm:request_generation_tokens", "Tokens sent, all n together.", _TOKENS)
        self.n = histogram("vllm:request_params_n", "The parameter n.", _SEQUENCES)
        self.max_tokens = histogram("vllm:request_params_max_tokens", "The parameter max_tokens.", _TOKENS)
        self.success = Counter(
            "vllm:request_success", "Requests that ended.", ("model_name", "finished_reason"), registry=registry
        )


class RequestTrace:
    """The course of one request, told by its route. The request has arrived when the trace is made.

    Nothing is observed before `prepared`: until then its model may be any text that a client typed.
    """

    def __init__(
        self, metrics: RequestMetrics, *, model: str, request_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.model = model
        self.request_id = request_id
        self._metrics = metrics
        self._clock = clock
        self._received = clock()
        self._prepared: float | None = None
        self._timeline: Timeline | None = None
        self._between: Histogram | None = None
        self._first: float | None = None
        self._last: dict[int, float] = {}
        self._num_tokens = 0
        self._ended = False

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token, once it was sent."""
        return None if self._first is None else self._first - self._received

    def received(self, at: float) -> None:
        """The request had arrived before the trace was made: at `at` on the clock."""
        self._received = at

    def prepared(self, generation: Generation) -> None:
        """The prompt is rendered and tokenized, the request checked and about to be queued."""
        self._prepared = self._clock()
        metrics, params = self._metrics, generation.params
        self._between = metrics.between.labels(self.model)
        metrics.prompt_tokens.labels(self.model).observe(len(generation.prompt))
        metrics.n.labels(self.model).observe(params.n)
        if params.max_tokens is not None:
            metrics.max_tokens.labels(self.model).observe(params.max_tokens)

    def first_token(self, timeline: Timeline | None) -> None:
        """The first token of any sequence goes out, `timeline` came with its delta; `token` follows for it too.

        Later calls do nothing: a first token stays the first, whatever is computed again.
        """
        if self._first is not None or self._prepared is None:
            return
        self._first, self._timeline = self._clock(), timeline
        self._metrics.first_token.labels(self.model).observe(self._first - self._received)
        if timeline is not None:
            self._observe_parts(self._prepared, self._first, timeline)

    def token(self, n: int = 1, *, index: int = 0) -> None:
        """n tokens of sequence `index` go out. Those that come together share the time since the ones before."""
        now, last = self._clock(), self._last.get(index)
        self._num_tokens += n
        self._last[index] = now
        if last is not None and self._between is not None:
            for _ in range(n):
                self._between.observe((now - last) / n)

    def finished(self, reason: str) -> None:
        """The request ended: stop, length, abort, timeout or error. Later calls do nothing."""
        if self._ended or self._prepared is None:
            return
        self._ended = True
        metrics = self._metrics
        metrics.success.labels(self.model, reason).inc()
        metrics.whole.labels(self.model).observe(self._clock() - self._received)
        metrics.output_tokens.labels(self.model).observe(self._num_tokens)
        if self._first is not None:
            self._observe_phases(self._first, max(self._last.values(), default=self._first))

    def _observe_parts(self, prepared: float, first: float, timeline: Timeline) -> None:
        moments = (self._received, prepared, timeline.scheduled, timeline.allocated, timeline.computed, first)
        for part, start, end in zip(TTFT_PARTS, moments, moments[1:], strict=False):
            self._metrics.part.labels(self.model, part).observe(end - start)
            add_stage(part, start, end, {"model": self.model})

    def _observe_phases(self, first: float, last: float) -> None:
        metrics, timeline = self._metrics, self._timeline
        metrics.decode.labels(self.model).observe(last - first)
        add_stage("decode", first, last, {"model": self.model, "tokens": self._num_tokens})
        if self._num_tokens > len(self._last):
            mean = (last - first) * len(self._last) / (self._num_tokens - len(self._last))
            metrics.per_token.labels(self.model).observe(mean)
        if timeline is not None:
            metrics.queue.labels(self.model).observe(timeline.scheduled - timeline.queued)
            metrics.prefill.labels(self.model).observe(timeline.sampled - timeline.scheduled)
            metrics.inference.labels(self.model).observe(last - timeline.scheduled)
