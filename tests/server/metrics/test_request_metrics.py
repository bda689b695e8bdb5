"""The course of a request in numbers: five parts that add up to the time to first token, and vLLM's histograms."""

from typing import Any

import numpy as np
import pytest
from fake_engine import request
from prometheus_client.parser import text_string_to_metric_families

from vtk.llm_serving.stats import Timeline
from vtk.server.metrics import Metrics
from vtk.server.request_metrics import TTFT_PARTS, RequestTrace


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Scraped:
    """The samples of a scrape by name and labels."""

    def __init__(self, metrics: Metrics) -> None:
        families = text_string_to_metric_families(metrics.render().decode())
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def models(self) -> set[str]:
        return {value for _, labels in self.samples for key, value in labels if key == "model_name"}


def start(metrics: Metrics, **params: Any) -> RequestTrace:
    trace = metrics.trace(model="m", request_id="r")
    trace.prepared(request(**params))
    return trace


def test_the_five_parts_add_up_to_the_time_to_first_token() -> None:
    rng = np.random.default_rng()
    clock = Clock()
    metrics = Metrics(clock=clock)
    expected = dict.fromkeys(TTFT_PARTS, 0.0)
    for _ in range(20):
        tokenize, hop, queue, allocate, prefill, sample, send = rng.exponential(0.05, 7)
        trace = metrics.trace(model="m", request_id="r")
        received = clock.now
        clock.now += tokenize
        trace.prepared(request())
        queued = clock.now + hop
        scheduled = queued + queue
        allocated = scheduled + allocate
        computed = allocated + prefill
        timeline = Timeline(queued, scheduled, allocated, computed, computed + sample)
        clock.now = computed + sample + send
        trace.first_token(timeline)
        assert trace.ttft == pytest.approx(clock.now - received)
        parts = (tokenize, hop + queue, allocate, prefill, sample + send)
        for part, seconds in zip(TTFT_PARTS, parts, strict=True):
            expected[part] += seconds
    scraped = Scraped(metrics)
    for part, seconds in expected.items():
        assert scraped("vtk:ttft_part_seconds_sum", model_name="m", part=part) == pytest.approx(seconds)
    assert scraped("vllm:time_to_first_token_seconds_sum", model_name="m") == pytest.approx(sum(expected.values()))
    assert scraped("vllm:time_to_first_token_seconds_count", model_name="m") == 20


def test_a_first_token_is_never_the_first_again() -> None:
    """Case L38: what is recomputed after a preemption shows in the time between tokens, not in the first one."""
    clock = Clock()
    metrics = Metrics(clock=clock)
    trace = start(metrics)
    clock.now += 1
    trace.first_token(None)
    trace.token()
    clock.now += 7  # preempted and computed again
    trace.first_token(None)
    trace.token()
    scraped = Scraped(metrics)
    assert trace.ttft == 1
    assert scraped("vllm:time_to_first_token_seconds_sum", model_name="m") == 1
    assert scraped("vllm:time_to_first_token_seconds_count", model_name="m") == 1
    assert scraped("vllm:inter_token_latency_seconds_sum", model_name="m") == 7
    assert scraped("vllm:inter_token_latency_seconds_count", model_name="m") == 1


def test_phases_of_a_whole_request() -> None:
    clock = Clock()
    metrics = Metrics(clock=clock)
    trace = start(metrics, max_tokens=40)
    clock.now += 10
    trace.first_token(Timeline(queued=1001, scheduled=1004, allocated=1005, computed=1008, sampled=1009))
    trace.token()
    for _ in range(4):
        clock.now += 0.5
        trace.token()
    clock.now += 3
    trace.finished("stop")
    scraped = Scraped(metrics)

    def total(name: str) -> float | None:
        assert scraped(f"vllm:{name}_count", model_name="m") == 1
        return scraped(f"vllm:{name}_sum", model_name="m")

    assert total("request_queue_time_seconds") == 3
    assert total("request_prefill_time_seconds") == 5
    assert total("request_decode_time_seconds") == 2
    assert total("request_inference_time_seconds") == 8
    assert total("request_time_per_output_token_seconds") == 0.5
    assert total("e2e_request_latency_seconds") == 15
    assert total("request_generation_tokens") == 5
    assert total("request_prompt_tokens") == 19
    assert total("request_params_n") == 1
    assert total("request_params_max_tokens") == 40
    assert scraped("vllm:request_success_total", model_name="m", finished_reason="stop") == 1


def test_sequences_are_timed_by_themselves() -> None:
    clock = Clock()
    metrics = Metrics(clock=clock)
    trace = start(metrics, n=2)
    for moment, index in ((1, 0), (2, 1), (4, 0), (6, 1)):
        clock.now = 1000 + moment
        trace.first_token(None)
        trace.token(index=index)
    trace.finished("length")
    scraped = Scraped(metrics)
    assert scraped("vllm:inter_token_latency_seconds_sum", model_name="m") == 3 + 4
    assert scraped("vllm:inter_token_latency_seconds_count", model_name="m") == 2
    assert scraped("vllm:request_generation_tokens_sum", model_name="m") == 4


def test_tokens_that_come_together_share_their_time() -> None:
    clock = Clock()
    metrics = Metrics(clock=clock)
    trace = start(metrics)
    trace.first_token(None)
    trace.token()
    clock.now += 3
    trace.token(3)
    scraped = Scraped(metrics)
    assert scraped("vllm:inter_token_latency_seconds_sum", model_name="m") == 3
    assert scraped("vllm:inter_token_latency_seconds_count", model_name="m") == 3
    assert scraped("vllm:inter_token_latency_seconds_bucket", model_name="m", le="1.0") == 3


def test_an_end_is_counted_once_and_one_before_a_token_too() -> None:
    metrics = Metrics()
    trace = start(metrics)
    trace.finished("abort")
    trace.finished("stop")
    scraped = Scraped(metrics)
    assert scraped("vllm:request_success_total", model_name="m", finished_reason="abort") == 1
    assert scraped("vllm:request_success_total", model_name="m", finished_reason="stop") is None
    assert scraped("vllm:request_decode_time_seconds_count", model_name="m") is None
    assert trace.ttft is None


def test_a_model_that_a_client_made_up_is_no_label() -> None:
    metrics = Metrics()
    for i in range(5):
        trace = metrics.trace(model=f"no-such-model-{i}", request_id="r")
        trace.first_token(None)
        trace.token()
        trace.token()
        trace.finished("error")
    metrics.rejected("model_not_found")
    scraped = Scraped(metrics)
    assert scraped.models() == set()
    assert scraped("vtk:rejected_requests_total", reason="model_not_found") == 1


def test_two_servers_of_one_process_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    start(one).finished("stop")
    assert Scraped(one).models() == {"m"}
    assert Scraped(other).models() == set()


def test_the_arrival_may_be_told() -> None:
    clock = Clock()
    metrics = Metrics(clock=clock)
    trace = metrics.trace(model="m", request_id="r")
    trace.received(990.0)
    trace.prepared(request())
    trace.first_token(None)
    assert trace.ttft == 10


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        (
            "time_to_first_token_seconds",
            "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 "
            "2560.0",
        ),
        (
            "inter_token_latency_seconds",
            "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0",
        ),
        (
            "e2e_request_latency_seconds",
            "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0",
        ),
        ("request_params_n", "1.0 2.0 5.0 10.0 20.0"),
    ],
)
def test_buckets_are_those_of_vllm(name: str, bounds: str) -> None:
    metrics = Metrics()
    trace = start(metrics)
    trace.first_token(None)
    trace.token()
    trace.token()
    trace.finished("stop")
    buckets = [dict(labels)["le"] for sample, labels in Scraped(metrics).samples if sample == f"vllm:{name}_bucket"]
    assert buckets == [*bounds.split(), "+Inf"]
