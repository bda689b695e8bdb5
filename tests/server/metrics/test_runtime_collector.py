"""What is read from a runtime at scrape time, and only then."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from fake_engine import PROMPT, make, request
from prometheus_client.parser import text_string_to_metric_families

from vtk.server.metrics import Metrics
from vtk.serving.model_table import ModelStatus

MakeRuntime: TypeAlias = Callable[..., Any]


def scrape(runtime: Any) -> dict[str, float]:
    metrics = Metrics()
    metrics.watch(runtime)
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))}}}": sample.value
        for family in families
        for sample in family.samples
    }


def test_an_engine_in_vllm_names(fake_runtime: MakeRuntime) -> None:
    found = scrape(fake_runtime(ModelStatus("m", "1", "llm", state="ready")))
    expected = {
        "vllm:num_requests_running{model_name=m}": 3,
        "vllm:num_requests_waiting{model_name=m}": 2,
        "vllm:kv_cache_usage_perc{model_name=m}": 0.25,
        "vllm:num_preemptions_total{model_name=m}": 5,
        "vllm:prompt_tokens_total{model_name=m}": 1030,
        "vllm:prompt_tokens_cached_total{model_name=m}": 400,
        "vllm:generation_tokens_total{model_name=m}": 70,
        "vllm:prefix_cache_queries_total{model_name=m}": 1000,
        "vllm:prefix_cache_hits_total{model_name=m}": 400,
        "vllm:prompt_tokens_by_source_total{model_name=m,source=local_compute}": 630,
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


def test_a_vision_model_and_the_device(fake_runtime: MakeRuntime) -> None:
    found = scrape(fake_runtime(ModelStatus("d", "2", "vision", state="ready", bytes=5000)))
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


def test_models_that_do_not_serve_have_a_state_and_nothing_else(fake_runtime: MakeRuntime) -> None:
    runtime = fake_runtime(
        ModelStatus("gone", "1", "llm", state="unloaded"), ModelStatus("loading", "1", "vision", state="loading")
    )
    found = scrape(runtime)
    assert found["vtk:model_state{kind=llm,model_name=gone,model_version=1,state=unloaded}"] == 1
    others = {name for name in found if "gone" in name or "loading," in name}
    assert all(name.startswith(("vtk:model_state", "vtk:model_bytes")) for name in others)


def test_the_runtime_is_asked_by_scrapes_alone(fake_runtime: MakeRuntime) -> None:
    runtime = fake_runtime()
    metrics = Metrics()
    metrics.watch(runtime)
    metrics.watch(runtime)
    assert runtime.asked == 0
    metrics.render()
    assert runtime.asked == 1


def test_the_process_is_measured(fake_runtime: MakeRuntime) -> None:
    assert scrape(fake_runtime())["process_resident_memory_bytes{}"] > 1 << 20


def test_a_real_engine_is_read_as_it_runs(fake_runtime: MakeRuntime) -> None:
    engine = make(max_num_batched_tokens=64)
    runtime = fake_runtime(ModelStatus("m", "1", "llm", state="ready"), engine=engine)
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
