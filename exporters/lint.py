"""Checks a graph before any engine sees it: what would fail or go wrong later is named now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from vtk.errors import LintError
from vtk.exporters.onnx_rules import ERROR_RULES, WARNING_RULES, Rule
from vtk.exporters.onnx_view import GraphView, view

MAX_PROTO_BYTES = (1 << 31) - 1  # protobuf's own limit on one message
SHOWN_PROBLEMS = 5


@dataclass(frozen=True)
class Finding:
    """One thing about a graph: the rule's stable name and a sentence for people."""

    rule: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class LintReport:
    """Errors stop an export; warnings are things that engines are known to get wrong. op_counts: nodes by type."""

    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    op_counts: Mapping[str, int]

    def raise_if_failed(self) -> None:
        """Raise LintError with the first problems, when there is any."""
        if self.errors:
            shown = " ".join(f"({n}) {finding}" for n, finding in enumerate(self.errors[:SHOWN_PROBLEMS], 1))
            more = len(self.errors) - SHOWN_PROBLEMS
            rest = f" … and {more} more." if more > 0 else ""
            raise LintError(f"The graph breaks rules that engines need: {shown}{rest}")


def lint(model: onnx.ModelProto) -> LintReport:
    """Check one graph. Tensor data may be external and need not be there. Raises nothing: see the report."""
    counts = dict(sorted(Counter(node.op_type for node in model.graph.node).items()))
    if model.ByteSize() > MAX_PROTO_BYTES:
        message = f"The graph file would hold {model.ByteSize()} bytes; 2 GiB is the limit: store tensors externally."
        return LintReport((Finding("size", message),), (), counts)
    inferred, problems = _infer(model)
    graph = view(inferred)
    return LintReport(problems + _apply(ERROR_RULES, graph), _apply(WARNING_RULES, graph), counts)


def _infer(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[Finding, ...]]:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True), ()
    except (onnx.shape_inference.InferenceError, ValueError) as error:  # malformed control flow is a bare ValueError
        message = f"Its shapes cannot be inferred: {str(error).strip().splitlines()[0]}"
        return model, (Finding("shape-inference", message),)


def lint_file(path: Path) -> LintReport:
    """Check a graph file without loading its external tensors."""
    return lint(onnx.load(path, load_external_data=False))


def _apply(rules: Mapping[str, Rule], graph: GraphView) -> tuple[Finding, ...]:
    return tuple(Finding(name, message) for name, rule in rules.items() for message in rule(graph))
