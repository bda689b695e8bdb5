"""The parts of the page that compute, run by the browser itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from .conftest import Browser

Running = Any


@pytest.fixture
def page(browser: Browser, server: Running) -> Browser:
    browser.driver.get(f"{server.url}/console/")
    return browser


class Scrapes:
    """A registry as Prometheus would see it now and then."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.texts: list[str] = []

    def take(self) -> None:
        self.texts.append(generate_latest(self.registry).decode())


READ = "m.{call}(m.parse(a[0]), m.parse(a[1]), ...a[2])"


def test_gauges_are_summed_over_the_labels_asked_for(page: Browser) -> None:
    scrapes = Scrapes()
    gauge = Gauge("vllm:num_requests_running", "x", ("model_name", "kind"), registry=scrapes.registry)
    for name, kind, value in (('a"b\\c\n{}, =', "llm", 3), ("b", "llm", 4.5), ("c", "vision", 100)):
        gauge.labels(name, kind).set(value)
    scrapes.take()
    ask = "[m.sum(m.parse(a[0]), a[1]), m.sum(m.parse(a[0]), a[1], a[2]), m.sum(m.parse(a[0]), 'none')]"
    name = "vllm:num_requests_running"
    told = page.module("prometheus.js", ask, scrapes.texts[0], name, {"kind": "llm"})
    assert told == [107.5, 7.5, None]
    odd = page.module("prometheus.js", "m.sum(m.parse(a[0]), a[1], a[2])", scrapes.texts[0], name,
                      {"model_name": 'a"b\\c\n{}, ='})  # fmt: skip
    assert odd == 3


def test_a_counter_grows_from_nothing_and_over_a_reset(page: Browser) -> None:
    scrapes = Scrapes()
    counter = Counter("vllm:generation_tokens", "x", ("model_name",), registry=scrapes.registry)
    counter.labels("old").inc(50)
    counter.labels("reset").inc(50)
    scrapes.take()
    counter.labels("old").inc(7)
    counter.labels("new").inc(11)
    counter.remove("reset")
    counter.labels("reset").inc(5)
    scrapes.take()
    arguments = ["vllm:generation_tokens_total"]
    assert page.module("prometheus.js", READ.format(call="increase"), *scrapes.texts, arguments) == 7 + 11 + 5


@pytest.mark.parametrize("q", [0.5, 0.95, 1.0])
def test_quantiles_are_those_of_histogram_quantile(page: Browser, q: float) -> None:
    """The formula of Prometheus: linear within the bucket that holds the rank, between two scrapes only."""
    bounds = (0.001, 0.01, 0.1, 1.0)
    scrapes = Scrapes()
    histogram = Histogram("vllm:ttft", "x", ("model_name",), buckets=bounds, registry=scrapes.registry)
    rng = np.random.default_rng(4)
    for value in rng.uniform(0.5, 0.9, 300):
        histogram.labels("a").observe(value)
    scrapes.take()
    seen = rng.exponential(0.05, 200).clip(0, 0.99)
    for index, value in enumerate(seen):
        histogram.labels("ab"[index % 2]).observe(value)
    scrapes.take()
    rank = q * len(seen)
    cumulated = [int((seen <= bound).sum()) for bound in bounds]
    index = next(i for i, count in enumerate(cumulated) if count >= rank)
    lower, below = (bounds[index - 1], cumulated[index - 1]) if index else (0.0, 0)
    expected = lower + (bounds[index] - lower) * (rank - below) / (cumulated[index] - below)
    told = page.module("prometheus.js", READ.format(call="quantile"), *scrapes.texts, ["vllm:ttft", q])
    assert told == pytest.approx(expected)


def test_quantiles_of_nothing_are_none_and_beyond_the_last_bound_are_that_bound(page: Browser) -> None:
    scrapes = Scrapes()
    histogram = Histogram("h", "x", buckets=(1.0, 2.0), registry=scrapes.registry)
    histogram.observe(0.5)
    scrapes.take()
    scrapes.take()
    assert page.module("prometheus.js", READ.format(call="quantile"), *scrapes.texts, ["h", 0.5]) is None
    histogram.observe(99)
    scrapes.take()
    assert page.module("prometheus.js", READ.format(call="quantile"), *scrapes.texts[1:], ["h", 0.5]) == 2.0


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_events_are_read_however_the_bytes_are_cut(page: Browser, size: int) -> None:
    text = 'data: {"a":"ü€😀"}\n\ndata: two\n\nevent: error\ndata: {"error":1}\n\ndata: [DONE]\n\n'
    script = """(async () => {
      const bytes = new TextEncoder().encode(a[0]), found = [];
      const body = new ReadableStream({start(c) {
        for (let i = 0; i < bytes.length; i += a[1]) c.enqueue(bytes.slice(i, i + a[1]));
        c.close();
      }});
      for await (const event of m.events(body)) found.push([event.event, event.data]);
      return found;
    })()"""
    assert page.module("api.js", script, text, size) == [
        ["message", '{"a":"ü€😀"}'],
        ["message", "two"],
        ["error", '{"error":1}'],
        ["message", "[DONE]"],
    ]


def test_cosines(page: Browser) -> None:
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((2, 64))
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert page.module("similarity.js", "m.cosine(a[0], a[1])", a.tolist(), b.tolist()) == pytest.approx(expected)
    assert page.module("similarity.js", "m.cosine(a[0], a[1])", [1, 2], [-2, -4]) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("value", "least", "expected"), [(0, 4, 4), (4, 4, 4), (4.01, 4, 5), (12, 1, 20), (20, 1, 20), (0.03, 0.01, 0.05)]
)
def test_axes_end_at_round_numbers(page: Browser, value: float, least: float, expected: float) -> None:
    assert page.module("chart.js", "m.niceCeiling(a[0], a[1])", value, least) == pytest.approx(expected)


def test_a_chart_breaks_at_gaps_and_forgets_what_is_old(page: Browser) -> None:
    script = """(() => {
      const chart = new m.Chart({title: "T", names: ["x"], format: String, least: 1, max: 1});
      const at = (time, value) => chart.add(time, [value]);
      at(0, 1); at(m.SPAN - 20, 0); at(m.SPAN - 10, null); at(m.SPAN, 0.5);
      const first = chart.root.querySelector(".line").getAttribute("d");
      at(m.SPAN + 1, 1);
      return [first, chart.root.querySelector(".line").getAttribute("d"), chart.root.querySelector("svg").ariaLabel];
    })()"""
    first, later, label = page.module("chart.js", script)
    assert first.startswith("M0.0 0.0l0 0L")
    assert first.endswith("100.0M300.0 50.0l0 0")
    assert "M0.0 " not in later
    assert later.endswith("L300.0 0.0")
    assert "now x 1" in label


def test_the_time_of_an_answer_counts_tokens_not_chunks(page: Browser) -> None:
    """Three tokens in one chunk, 300 ms after the first, are three gaps of 100 ms."""
    script = """(() => {
      let now = 1000;
      performance.now = () => now;
      const timing = new m.Timing();
      const told = (tokens) => ({completion_tokens: tokens, prompt_tokens: 20,
                                 prompt_tokens_details: {cached_tokens: 16}});
      now = 1250; timing.chunk(told(1));
      now = 1550; timing.chunk(told(4));
      now = 1600; timing.chunk(told(4));
      now = 1650; timing.chunk(told(5));
      return [timing.ttft, timing.rate, Object.fromEntries(timing.figures().map(([name, value]) => [name, value]))];
    })()"""
    ttft, rate, figures = page.module("timing.js", script)
    assert ttft == pytest.approx(0.25)
    assert rate == pytest.approx(4 / 0.4)
    assert figures == {
        "TTFT": "250 ms",
        "ITL": "100 ms",
        "p95": "100 ms",
        "tokens/s": "10",
        "tokens": "5",
        "cached": "16 of 20",
    }


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("m.seconds(null)", "–"), ("m.seconds(0.0042)", "4.2 ms"), ("m.seconds(0.25)", "250 ms"),
        ("m.seconds(1.5)", "1.50 s"), ("m.bytes(512)", "512 B"), ("m.bytes(1536)", "1.5 KiB"),
        ("m.bytes(3 * 2**30)", "3.0 GiB"), ("m.share(0.5)", "50%"), ("m.share(0.042)", "4.2%"), ("m.share(0)", "0%"),
        ("m.count(3)", "3"), ("m.count(2.345)", "2.3"), ("m.count(345.6)", "346"), ("m.count(12345)", "12k"),
    ],
)  # fmt: skip
def test_numbers_are_written_for_people(page: Browser, call: str, told: str) -> None:
    assert page.module("format.js", call) == told
