"""What a runtime knows of itself, read when somebody scrapes and at no other time.

Counters belong to an open model: they begin at zero when it is loaded again, which Prometheus' `rate` expects.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from vtk.errors import NotFoundError, UnavailableError
from vtk.llm_serving.stats import Distribution, EngineSnapshot
from vtk.serving.arbiter import ArbiterSnapshot
from vtk.serving.model_table import ModelStatus, State
from vtk.serving.vision_model import VisionStats

if TYPE_CHECKING:
    from vtk.llm_serving.args import EngineArgs
    from vtk.runtime import Runtime

Engines: TypeAlias = "Mapping[str, EngineSnapshot]"
Pictures: TypeAlias = "Mapping[tuple[str, str], VisionStats]"
_VISION_LABELS = ("model_name", "model_version")

# vLLM's names where it has them; a counter's name gets `_total` when it is written.
_ENGINE_GAUGES: tuple[tuple[str, str, Callable[[EngineSnapshot], float]], ...] = (
    ("vllm:num_requests_running", "Sequences in the batch.", lambda e: e.num_running),
    ("vllm:num_requests_waiting", "Sequences in the queue, preempted ones included.", lambda e: e.num_waiting),
    ("vllm:kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all.", lambda e: e.kv_usage),
)
_ENGINE_COUNTERS: tuple[tuple[str, str, Callable[[EngineSnapshot], float]], ...] = (
    ("vllm:num_preemptions", "Sequences put back into the queue for lack of blocks.", lambda e: e.num_preemptions),
    ("vllm:prompt_tokens", "Prompt tokens admitted, cached or not.", lambda e: e.num_prompt_tokens),
    ("vllm:prompt_tokens_cached", "Prompt tokens that were not computed.", lambda e: e.prefix.hits),
    ("vllm:generation_tokens", "Tokens sampled.", lambda e: e.steps.sampled_tokens),
    ("vllm:prefix_cache_queries", "Tokens asked of the prefix cache, first admissions.", lambda e: e.prefix.queries),
    ("vllm:prefix_cache_hits", "Tokens found in it, first admissions.", lambda e: e.prefix.hits),
    ("vtk:kv_block_evictions", "Cached blocks given to other tokens.", lambda e: e.num_evictions),
)
_ENGINE_SPLITS: tuple[tuple[str, str, str, Callable[[EngineSnapshot], Mapping[str, float]]], ...] = (
    (
        "vllm:prompt_tokens_by_source",
        "Prompt tokens admitted, by where they come from.",
        "source",
        lambda e: {"local_compute": e.num_prompt_tokens - e.prefix.hits, "local_cache_hit": e.prefix.hits},
    ),
    (
        "vtk:prefix_cache_hit_tokens",
        "Tokens not computed: left by ended requests, shared with live ones, found again after a preemption.",
        "source",
        lambda e: {
            "cached": e.prefix.hits - e.prefix.shared_hits,
            "in_flight": e.prefix.shared_hits,
            "resumed": e.prefix.resumed_hits,
        },
    ),
    (
        "vtk:step_tokens",
        "Tokens computed, those of a recompute after preemption included.",
        "phase",
        lambda e: {"prefill": e.steps.prefill_tokens, "decode": e.steps.decode_tokens},
    ),
    (
        "vtk:aborted_sequences",
        "Sequences dropped before their end.",
        "reason",
        lambda e: {reason.value: count for reason, count in e.steps.aborts.items()},
    ),
)
_ENGINE_HISTOGRAMS: tuple[tuple[str, str, Callable[[EngineSnapshot], Distribution]], ...] = (
    ("vllm:iteration_tokens_total", "Tokens computed in a step.", lambda e: e.steps.tokens),
    ("vtk:step_sequences", "Sequences in a step: the occupancy of the batch.", lambda e: e.steps.sequences),
)


class RuntimeCollector(Collector):
    """Reads models under lease, so that none is closed meanwhile."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """All metrics of the moment."""
        statuses = self._runtime.statuses()
        yield from _models(statuses)
        yield from _device(self._runtime.arbiter.snapshot())
        budget = self._runtime.budget
        yield GaugeMetricFamily("vtk:memory_budget_bytes", "Memory that models may take together.", budget.total)
        yield GaugeMetricFamily("vtk:memory_free_bytes", "Memory of the budget that no model holds.", budget.free)
        engines: dict[str, EngineSnapshot] = {}
        args: dict[str, EngineArgs] = {}
        pictures: dict[tuple[str, str], VisionStats] = {}
        for status in statuses:
            # A model may be unloaded at any moment: then it has no metrics.
            with suppress(NotFoundError, UnavailableError):
                if status.kind == "llm":
                    with self._runtime.language(status.name) as language:
                        engines[status.name], args[status.name] = language.loaded.engine.snapshot(), language.args
                else:
                    with self._runtime.vision(status.name, status.version) as vision:
                        pictures[status.name, status.version] = vision.stats
        yield from _language(engines)
        yield _cache_config(engines, args)
        yield from _vision(pictures)


def _models(statuses: Iterable[ModelStatus]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "vtk:model_state", "1 for the state that a model is in.", labels=(*_VISION_LABELS, "kind", "state")
    )
    size = GaugeMetricFamily("vtk:model_bytes", "Memory of the budget that a model holds.", labels=_VISION_LABELS)
    for status in statuses:
        for name in get_args(State):
            state.add_metric((status.name, status.version, status.kind, name), float(name == status.state))
        size.add_metric((status.name, status.version), status.bytes)
    yield from (state, size)


def _device(arbiter: ArbiterSnapshot) -> Iterator[Metric]:
    rows = {
        "language": (arbiter.language_busy, arbiter.language_waited, arbiter.language_turns),
        "vision": (arbiter.vision_busy, arbiter.vision_waited, arbiter.vision_turns),
    }
    told = (
        ("vtk:device_busy_seconds", "Time in which the device computed."),
        ("vtk:device_wait_seconds", "Time for which work waited for the device, all of it together."),
        ("vtk:device_turns", "Language steps and batches of pictures."),
    )
    for i, (name, text) in enumerate(told):
        counter = CounterMetricFamily(name, text, labels=("kind",))
        for kind, values in rows.items():
            counter.add_metric((kind,), values[i])
        yield counter
    yield GaugeMetricFamily("vtk:device_idle_share", "Share of the time since the start, 0..1.", arbiter.idle_share)
    yield GaugeMetricFamily("vtk:device_queue_length", "Turns that wait for the device.", arbiter.num_waiting)


def _language(engines: Engines) -> Iterator[Metric]:
    for name, text, value in _ENGINE_GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=("model_name",))
        for model, engine in engines.items():
            gauge.add_metric((model,), value(engine))
        yield gauge
    for name, text, value in _ENGINE_COUNTERS:
        counter = CounterMetricFamily(name, text, labels=("model_name",))
        for model, engine in engines.items():
            counter.add_metric((model,), value(engine))
        yield counter
    for name, text, label, parts in _ENGINE_SPLITS:
        counter = CounterMetricFamily(name, text, labels=("model_name", label))
        for model, engine in engines.items():
            for part, count in parts(engine).items():
                counter.add_metric((model, part), count)
        yield counter
    for name, text, distribution in _ENGINE_HISTOGRAMS:
        histogram = HistogramMetricFamily(name, text, labels=("model_name",))
        for model, engine in engines.items():
            seen = distribution(engine)
            histogram.add_metric((model,), _buckets(seen), seen.total)
        yield histogram


def _buckets(seen: Distribution) -> list[tuple[str, float]]:
    """Prometheus' buckets: each counts all values up to its bound."""
    bounds = [*(str(float(bound)) for bound in seen.bounds), "+Inf"]
    return list(zip(bounds, itertools.accumulate(seen.counts), strict=True))


def _cache_config(engines: Engines, args: Mapping[str, EngineArgs]) -> Metric:
    info = GaugeMetricFamily(
        "vllm:cache_config_info",
        "How the KV cache is set up.",
        labels=("model_name", "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching", "max_num_seqs"),
    )
    for model, engine in engines.items():
        row = (
            engine.block_size,
            engine.num_blocks,
            args[model].kv_dtype,
            args[model].enable_prefix_caching,
            engine.max_num_seqs,
        )
        info.add_metric((model, *map(str, row)), 1)
    return info


def _vision(pictures: Pictures) -> Iterator[Metric]:
    count = CounterMetricFamily("vtk:vision_pictures", "Pictures that went through an engine.", labels=_VISION_LABELS)
    queued = GaugeMetricFamily("vtk:vision_queue_length", "Pictures that wait for a batch.", labels=_VISION_LABELS)
    occupancy = GaugeMetricFamily(
        "vtk:vision_batch_occupancy", "Share of the rows of all batches that held a picture.", labels=_VISION_LABELS
    )
    seconds = CounterMetricFamily(
        "vtk:vision_stage_seconds", "Time of all pictures in a stage.", labels=(*_VISION_LABELS, "stage")
    )
    batches = CounterMetricFamily("vtk:vision_batches", "Engine calls by size.", labels=(*_VISION_LABELS, "batch_size"))
    errors = CounterMetricFamily(
        "vtk:vision_errors", "Pictures answered with an error.", labels=(*_VISION_LABELS, "error")
    )
    hits = CounterMetricFamily("vtk:embedding_cache_hits", "Pictures that were remembered.", labels=_VISION_LABELS)
    misses = CounterMetricFamily("vtk:embedding_cache_misses", "Pictures that were encoded.", labels=_VISION_LABELS)
    held = GaugeMetricFamily("vtk:embedding_cache_bytes", "Features of pictures that are kept.", labels=_VISION_LABELS)
    for model, stats in pictures.items():
        if stats.cache is not None:
            hits.add_metric(model, stats.cache.hits)
            misses.add_metric(model, stats.cache.misses)
            held.add_metric(model, stats.cache.bytes)
        count.add_metric(model, stats.pictures)
        queued.add_metric(model, stats.num_queued)
        occupancy.add_metric(model, stats.occupancy)
        for family, parts in ((seconds, stats.seconds), (batches, stats.batches), (errors, stats.errors)):
            for part, value in parts.items():
                family.add_metric((*model, str(part)), value)
    yield from (count, queued, occupancy, seconds, batches, errors, hits, misses, held)
