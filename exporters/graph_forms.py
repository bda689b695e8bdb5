"""How two operations that engines get wrong are written in a graph; models stay as they are, graphs are rewritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vtk.exporters.to_tensorrt_known_bad import Remedy

AttentionForm = Literal["explicit", "fused"]
DeformForm = Literal["grid_sample", "gather"]


@dataclass(frozen=True)
class GraphForms:
    """attn: `explicit` scales the query, then MatMul, Softmax, MatMul; `fused` leaves the calls of
    scaled_dot_product_attention to the exporter (one Attention node from opset 23 on). Attention that a model writes
    out itself is explicit always.

    deform: `gather` writes bilinear sampling out as Pad, Gather, Mul and Add, `grid_sample` leaves the operator.
    """

    attn: AttentionForm = "explicit"
    deform: DeformForm = "grid_sample"

    @property
    def names(self) -> tuple[Remedy, ...]:
        """As the table of known faults names its remedies."""
        attn: Remedy = "attn=explicit" if self.attn == "explicit" else "attn=fused"
        deform: Remedy = "deform=gather" if self.deform == "gather" else "deform=grid_sample"
        return attn, deform


DEFAULT_FORMS = GraphForms()
