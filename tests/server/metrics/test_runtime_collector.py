"""What is read from a runtime at scrape time, and only then."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import PROMPT, make, request
from prometheus_client.parser import text_string_to_metric_families

from vtk.errors import NotFoundError, UnavailableError
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.core.prefix_cache import PrefixStats
from vtk.llm_serving.stats import STEP_SEQUENCES, STEP_TOKENS, AbortReason, Distribution, EngineSnapshot, StepCounts
from vtk.server.metrics import Metrics
from vtk.serving.arbiter import ArbiterSnapshot
from vtk.serving.model_table import ModelStatus
from vtk.serving.vision_model import VisionStats

SNAPSHOT = EngineSnapshot(
    num_running=3,
    num_waiting=2,
    max_num_seqs=8,
    kv_usage=0.25,
    num_blocks=100,
    block_size=16,
    num_preemptions=5,
    num_evictions=6,
    steps=StepCounts(
        prefill_tokens=700,
        decode_tokens=60,
        sampled_tokens=70,
        tokens=Distribution(STEP_TOKENS, (4, 3, *[0] * 11, 1), 760),
        sequences=Distribution(STEP_SEQUENCES, (8, *[0] * 10), 8),
        aborts={**dict.fromkeys(AbortReason, 0), AbortReason.CLIENT: 9},
    ),
    prefix=PrefixStats(queries=1000, hits=400, shared_hits=100, resumed_queries=50, resumed_hits=20),
)
STATS = VisionStats(
    pictures=30,
    errors={"ImageError": 2},
    seconds={"decode": 1.5, "infer": 4.0},
    batches={1: 6, 8: 4},
    num_queued=7,
)
ARBITER = ArbiterSnapshot(
    elapsed=10, language_busy=4, vision_busy=1, language_waited=0.5, vision_waited=0.25, language_turns=40,
    vision_turns=10, num_waiting=1,
)  # fmt: skip


class FakeRuntime:
    def __init__(self, *statuses: ModelStatus, engine: Any = None) -> None:
        self._statuses = list(statuses)
        self.arbiter = SimpleNamespace(snapshot=lambda: ARBITER)
        self.budget = SimpleNamespace(total=1000, free=300)
        self.engine = engine or SimpleNamespace(snapshot=lambda: SNAPSHOT)
        self.asked = 0

    def statuses(self) -> list[ModelStatus]:
        self.asked += 1
        return self._statuses

    @contextmanager
    def language(self, name: str) -> Iterator[Any]:
        if name == "gone":
            raise NotFoundError(name)
        args = EngineArgs(kv_cache_dtype="int8")
        yield SimpleNamespace(loaded=SimpleNamespace(engine=self.engine), args=args)

    @contextmanager
    def vision(self, name: str, version: str | None = None) -> Iterator[Any]:
        if name == "loading":
            raise UnavailableError(name)
        yield SimpleNamespace(stats=STATS)


def scrape(runtime: FakeRuntime) -> dict[str, float]:
    metrics = Metrics()
    metrics.watch(runtime)  # type: ignore[arg-type]
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))}}}": sample.value
        for family in families
        for sample in family.samples
    }


def test_an_engine_in_vllm_names() -> None:
    found = scrape(FakeRuntime(ModelStatus("m", "1", "llm", state="ready")))
    expected = {
        "vllm:num_requests_running{model_name=m}": 3,
        "vllm:num_requests_waiting{model_name=m}": 2,
        "vllm:kv_cache_usage_perc{model_name=m}": 0.25,
        "vllm:num_preemptions_total{model_name=m}": 5,
        "vllm:prompt_tokens_total{model_name=m}": 1000,
        "vllm:prompt_tokens_cached_total{model_name=m}": 400,
        "vllm:generation_tokens_total{model_name=m}": 70,
        "vllm:prefix_cache_queries_total{model_name=m}": 1000,
        "vllm:prefix_cache_hits_total{model_name=m}": 400,
        "vllm:prompt_tokens_by_source_total{model_name=m,source=local_compute}": 600,
        "vllm:prompt_tokens_by_source_total{model_name=m,source=local_cache_hit}": 400,
        "vtk:prefix_cache_hit_tokens_total{model_name=m,source=cached}": 300,
        "vtk:prefix_cache_hit_tokens_total{model_name=m,source=in_flight}": 100,
        "vtk:prefix_cache_hit_tokens_total{model_name=m,source=resumed}": 20,
        "vtk:step_tokens_total{model_name=m,phase=prefill}": 700,
        "vtk:step_tokens_total{model_name=m,phase=decode}": 60,
        "vtk:aborted_sequences_total{model_name=m,reason=client}": 9,
        "vtk:aborted_sequences_total{model_name=m,reason=timeout}": 0,
        "vtk:kv_block_evictions_total{model_name=m}": 6,
        "vllm:iteration_tokens_total_bucket{le=1.0,model_name=m}": 4,
        "vllm:iteration_tokens_total_bucket{le=8.0,model_name=m}": 7,
        "vllm:iteration_tokens_total_bucket{le=16384.0,model_name=m}": 7,
        "vllm:iteration_tokens_total_bucket{le=+Inf,model_name=m}": 8,
        "vllm:iteration_tokens_total_count{model_name=m}": 8,
        "vllm:iteration_tokens_total_sum{model_name=m}": 760,
        "vtk:step_sequences_count{model_name=m}": 8,
        "vtk:step_sequences_sum{model_name=m}": 8,
        "vllm:cache_config_info{block_size=16,cache_dtype=int8,enable_prefix_caching=True,max_num_seqs=8,"
        "model_name=m,num_gpu_blocks=100}": 1,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_a_vision_model_and_the_device() -> None:
    found = scrape(FakeRuntime(ModelStatus("d", "2", "vision", state="ready", bytes=5000)))
    expected = {
        "vtk:vision_pictures_total{model_name=d,model_version=2}": 30,
        "vtk:vision_queue_length{model_name=d,model_version=2}": 7,
        "vtk:vision_batch_occupancy{model_name=d,model_version=2}": 30 / 38,
        "vtk:vision_stage_seconds_total{model_name=d,model_version=2,stage=infer}": 4.0,
        "vtk:vision_batches_total{batch_size=8,model_name=d,model_version=2}": 4,
        "vtk:vision_errors_total{error=ImageError,model_name=d,model_version=2}": 2,
        "vtk:device_busy_seconds_total{kind=language}": 4,
        "vtk:device_busy_seconds_total{kind=vision}": 1,
        "vtk:device_wait_seconds_total{kind=language}": 0.5,
        "vtk:device_turns_total{kind=vision}": 10,
        "vtk:device_idle_share{}": 0.5,
        "vtk:device_queue_length{}": 1,
        "vtk:memory_budget_bytes{}": 1000,
        "vtk:memory_free_bytes{}": 300,
        "vtk:model_bytes{model_name=d,model_version=2}": 5000,
        "vtk:model_state{kind=vision,model_name=d,model_version=2,state=ready}": 1,
        "vtk:model_state{kind=vision,model_name=d,model_version=2,state=failed}": 0,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_models_that_do_not_serve_have_a_state_and_nothing_else() -> None:
    runtime = FakeRuntime(
        ModelStatus("gone", "1", "llm", state="unloaded"), ModelStatus("loading", "1", "vision", state="loading")
    )
    found = scrape(runtime)
    assert found["vtk:model_state{kind=llm,model_name=gone,model_version=1,state=unloaded}"] == 1
    others = {name for name in found if "gone" in name or "loading," in name}
    assert all(name.startswith(("vtk:model_state", "vtk:model_bytes")) for name in others)


def test_the_runtime_is_asked_by_scrapes_alone() -> None:
    runtime = FakeRuntime()
    metrics = Metrics()
    metrics.watch(runtime)  # type: ignore[arg-type]
    metrics.watch(runtime)  # type: ignore[arg-type]
    assert runtime.asked == 0
    metrics.render()
    assert runtime.asked == 1


def test_the_process_is_measured() -> None:
    assert scrape(FakeRuntime())["process_resident_memory_bytes{}"] > 1 << 20


def test_a_real_engine_is_read_as_it_runs() -> None:
    engine = make(max_num_batched_tokens=64)
    runtime = FakeRuntime(ModelStatus("m", "1", "llm", state="ready"), engine=engine)
    for name in "abc":
        engine.add(request(name, max_tokens=4, ignore_eos=True))
    engine.step()
    found = scrape(runtime)
    assert found["vllm:num_requests_running{model_name=m}"] == 3
    assert found["vllm:kv_cache_usage_perc{model_name=m}"] == pytest.approx(engine.scheduler.pool.usage)
    while engine.has_work:
        engine.step()
    found = scrape(runtime)
    assert found["vllm:num_requests_running{model_name=m}"] == 0
    assert found["vllm:generation_tokens_total{model_name=m}"] == 12
    assert found["vllm:prompt_tokens_total{model_name=m}"] == 3 * len(PROMPT)
    assert found["vllm:iteration_tokens_total_sum{model_name=m}"] == (
        found["vtk:step_tokens_total{model_name=m,phase=prefill}"]
        + found["vtk:step_tokens_total{model_name=m,phase=decode}"]
    )
