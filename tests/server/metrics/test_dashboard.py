"""The dashboard shows what is measured: every metric and every label that it names is there."""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import request

from vtk.llm_serving.stats import Timeline
from vtk.server.metrics import Metrics
from vtk.serving.model_table import ModelStatus

DASHBOARD = json.loads((Path(__file__).parents[3] / "examples/deploy/grafana/vtk.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
NAME = re.compile(r"\b(?:vllm|vtk):\w+|\bprocess_\w+")


@pytest.fixture
def labels(fake_runtime: Callable[..., Any]) -> dict[str, set[str]]:
    """The labels of every sample that a busy server exports, by name."""
    metrics = Metrics()
    statuses = (ModelStatus("m", "1", "llm", state="ready"), ModelStatus("d", "1", "vision", state="ready"))
    metrics.watch(fake_runtime(*statuses))
    trace = metrics.trace(model="m", request_id="r")
    trace.prepared(request())
    trace.first_token(Timeline(1, 2, 3, 4, 5))
    trace.token()
    trace.token()
    trace.finished("stop")
    metrics.rejected("rate_limit_exceeded")
    metrics.http_request(route="/v1/models", method="GET", status=200, seconds=0.1)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for family in metrics.registry.collect():
        for sample in family.samples:
            found[sample.name] |= sample.labels.keys()
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_and_label_exists(expression: str, labels: dict[str, set[str]]) -> None:
    names = NAME.findall(expression)
    assert names, "it shows nothing"
    assert set(names) <= labels.keys()
    for name, selector in re.findall(rf"({NAME.pattern})\{{([^}}]*)\}}", expression):
        assert set(re.findall(r"(\w+)=", selector)) <= labels[name]
    grouped = {label for group in re.findall(r"(?:by|ignoring) \(([^)]*)\)", expression) for label in group.split(", ")}
    assert grouped <= set().union(*(labels[name] for name in names))
    assert expression.count("(") == expression.count(")")


def test_legends_name_labels_that_are_left() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert label in target["expr"] or "by" not in target["expr"]


def test_what_explains_a_slow_server_is_shown() -> None:
    shown = {name for expression in EXPRESSIONS for name in NAME.findall(expression)}
    assert shown >= {
        "vtk:ttft_part_seconds_sum",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:kv_cache_usage_perc",
        "vtk:prefix_cache_hit_tokens_total",
        "vllm:num_preemptions_total",
        "vtk:aborted_sequences_total",
        "vtk:vision_stage_seconds_total",
        "vtk:device_busy_seconds_total",
        "vtk:rejected_requests_total",
        "process_resident_memory_bytes",
    }


def test_panels_have_names_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in DASHBOARD["panels"]
        for dx, dy in itertools.product(range(panel["gridPos"]["w"]), range(panel["gridPos"]["h"]))
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
