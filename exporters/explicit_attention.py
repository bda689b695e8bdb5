"""Attention written out: the query is scaled first, then MatMul, Softmax, MatMul.

Some engines fuse scaled_dot_product_attention wrongly (NVIDIA/TensorRT #4333), and scaling first keeps half-precision
scores in range: 40 · 40 over 64 channels is 102400, too much for float16, and 12800 once the query is scaled.
"""

from __future__ import annotations

import torch

_CALL = torch.ops.aten.scaled_dot_product_attention.default


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """What `torch.nn.functional.scaled_dot_product_attention` computes at inference, with the same arguments.

    query (…, H, L, E), key and value (…, H or a divisor of it, S, E or Ev) -> (…, H, L, Ev). A masked score becomes the
    lowest finite number, which half precision can hold once it is cast, not minus infinity.
    """
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, dim=-3), value.repeat_interleave(repeats, dim=-3)
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, torch.finfo(scores.dtype).min)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(dim=-1) @ value


def write_out_attention(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace every call of scaled_dot_product_attention; a program without one is returned as it is."""
    if not any(node.target is _CALL for node in program.graph.nodes):
        return program
    written: torch.export.ExportedProgram = program.run_decompositions({_CALL: attention})
    return written
