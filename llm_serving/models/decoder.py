"""The dense decoder that Llama, SmolLM, Qwen2 and Qwen3 are, over whichever operations a runner chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import torch

from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.linear.reference import LinearMode
from vtk.kernels.ops import Ops, W
from vtk.kernels.weights import StoredWeight
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.rope import rope_tables
from vtk.llm_serving.models.step_tensors import StepTensors
from vtk.llm_serving.models.weights import ModelWeights


@dataclass(frozen=True, eq=False)
class _Linear(Generic[W]):
    """Several matrices over one input, their outputs side by side; one matrix where all share a format."""

    parts: tuple[W, ...]
    bias: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class _Layer(Generic[W]):
    input_norm: torch.Tensor
    qkv: _Linear[W]
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: _Linear[W]
    mlp_norm: torch.Tensor
    gate_up: _Linear[W]
    down: _Linear[W]


class Decoder(Generic[W]):
    """Weights packed for one set of operations. Holds no state of any sequence.

    The vectors of `weights` lie on `device` already, where the steps and caches do too; matrices go where `ops` packs.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        ops: Ops[W],
        *,
        mode: LinearMode = "exact",
        max_positions: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.config = config
        self._ops = ops
        self._mode = mode
        self._cos, self._sin = (
            table.to(device) for table in rope_tables(config, max_positions or config.max_positions)
        )
        self._embedding = ops.pack(weights.matrices["embed_tokens.weight"])
        self._layers = [self._pack_layer(weights, f"layers.{i}.") for i in range(config.num_layers)]
        self._norm = weights.vectors["norm.weight"]
        tied = config.tie_embeddings
        self._head = self._embedding if tied else ops.pack(weights.matrices["lm_head.weight"])

    def forward(
        self, step: StepTensors, caches: Sequence[LayerCache], hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Store keys and values of all new tokens; the logits of `logits_rows`, (S, vocab_size).

        hidden: (T, hidden_size) float32 to be filled with the normalized last hidden states of all rows.
        """
        residual = self._ops.embedding(step.token_ids, self._embedding)
        update: torch.Tensor | None = None
        for layer, cache in zip(self._layers, caches, strict=True):
            x = self._norm_and_add(update, residual, layer.input_norm)
            x = self._attend(layer, x, step, cache)
            x = self._norm_and_add(x, residual, layer.mlp_norm)
            update = self._linear(self._ops.silu_and_mul(self._linear(x, layer.gate_up)), layer.down)
        if hidden is not None:
            assert update is not None
            hidden.copy_(self._norm_and_add(update, residual.clone(), self._norm))
        rows = step.logits_rows
        if not len(rows):
            return residual.new_empty(0, self.config.vocab_size)
        assert update is not None
        x = self._norm_and_add(update[rows], residual[rows], self._norm)
        return self._ops.linear(x, self._head, mode=self._mode)

    def _norm_and_add(self, update: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Add `update` to the residual stream in place and normalize the sum."""
        if update is None:
            return self._ops.rms_norm(residual, weight, self.config.rms_norm_eps)
        return self._ops.rms_norm(update, weight, self.config.rms_norm_eps, residual)

    def _attend(self, layer: _Layer[W], x: torch.Tensor, step: StepTensors, cache: LayerCache) -> torch.Tensor:
        config = self.config
        qkv = self._linear(x, layer.qkv).view(len(x), -1, config.head_dim)
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        query, key, value = torch.split(qkv, sizes, dim=1)
        self._ops.rope_and_cache(
            query, key, value, self._cos, self._sin, step.positions, step.slot_mapping, cache,
            layer.query_norm, layer.key_norm, config.rms_norm_eps,
        )  # fmt: skip
        attended = self._ops.paged_attention(
            query, cache, step.cu_seqlens, step.seq_lens, step.block_tables, config.head_dim**-0.5
        )
        return self._linear(attended.view(len(x), -1), layer.output)

    def _linear(self, x: torch.Tensor, linear: _Linear[W]) -> torch.Tensor:
        outputs = [self._ops.linear(x, part, mode=self._mode) for part in linear.parts]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return joined if linear.bias is None else joined.add_(linear.bias)

    def _pack_layer(self, weights: ModelWeights, prefix: str) -> _Layer[W]:
        vector = weights.vectors
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        return _Layer(
            input_norm=vector[f"{prefix}input_layernorm.weight"],
            qkv=self._pack(weights, [f"{attention}{name}_proj" for name in ("q", "k", "v")]),
            query_norm=vector.get(f"{attention}q_norm.weight"),
            key_norm=vector.get(f"{attention}k_norm.weight"),
            output=self._pack(weights, [f"{attention}o_proj"]),
            mlp_norm=vector[f"{prefix}post_attention_layernorm.weight"],
            gate_up=self._pack(weights, [f"{mlp}gate_proj", f"{mlp}up_proj"]),
            down=self._pack(weights, [f"{mlp}down_proj"]),
        )

    def _pack(self, weights: ModelWeights, names: list[str]) -> _Linear[W]:
        stored = [weights.matrices[f"{name}.weight"] for name in names]
        biases = [weights.vectors[f"{name}.bias"] for name in names if f"{name}.bias" in weights.vectors]
        bias = torch.cat(biases) if biases else None
        if len({weight.format for weight in stored}) == 1:
            stored = [_joined(stored)]
        return _Linear(tuple(self._ops.pack(weight) for weight in stored), bias)


def _joined(parts: list[StoredWeight]) -> StoredWeight:
    """One matrix of the rows of several of one format; its blocks stay as they are."""
    if len(parts) == 1:
        return parts[0]
    scales = [part.scales for part in parts if part.scales is not None]
    return StoredWeight(
        parts[0].format, torch.cat([part.data for part in parts]), torch.cat(scales) if scales else None
    )
