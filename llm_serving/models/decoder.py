"""The dense decoder that Llama, SmolLM, Qwen2 and Qwen3 are, over whichever operations a runner chose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from vtk.kernels.arrays import A
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.ops import LinearMode, Ops, W
from vtk.kernels.weights import StoredWeight
from vtk.llm_serving.models.activations import ActivationMemory, Activations
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.rope import rope_tables
from vtk.llm_serving.models.step_arrays import StepArrays
from vtk.llm_serving.models.weights import ModelWeights


@dataclass(frozen=True, eq=False)
class _Linear(Generic[W, A]):
    """Several matrices over one input, their outputs side by side; one matrix where all share a format.

    ends: of each matrix's outputs among all of them.
    """

    parts: tuple[W, ...]
    ends: tuple[int, ...]
    bias: A | None = None


@dataclass(frozen=True, eq=False)
class _Layer(Generic[W, A]):
    qkv: _Linear[W, A]
    query_norm: A | None
    key_norm: A | None
    output: _Linear[W, A]
    mlp_norm: A
    gate_up: _Linear[W, A]
    down: _Linear[W, A]
    next_norm: A


class Decoder(Generic[W, A]):
    """Weights packed for one set of operations, layer by layer. Holds no state of any sequence."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        ops: Ops[W, A],
        *,
        mode: LinearMode = "exact",
        max_positions: int | None = None,
        lasting: Callable[[int, int], A] | None = None,
    ) -> None:
        """lasting: makes memory of (rows, columns) for activations and logits, which every step then uses again."""
        self.config = config
        self._ops: Ops[W, A] = ops
        self._mode = mode
        self._memory: ActivationMemory[A] = ActivationMemory(config, ops.empty, lasting)
        cos, sin = rope_tables(config, max_positions or config.max_positions)
        self._cos: A = ops.array(cos)
        self._sin: A = ops.array(sin)
        self._embedding = ops.pack(weights.matrices["embed_tokens.weight"])
        norms = [f"layers.{i}.input_layernorm.weight" for i in range(config.num_layers)] + ["norm.weight"]
        self._first_norm: A = ops.array(weights.vectors[norms[0]])
        self._layers: list[_Layer[W, A]] = [
            self._pack_layer(weights, f"layers.{i}.", next_norm) for i, next_norm in enumerate(norms[1:])
        ]
        tied = config.tie_embeddings
        self._head = self._embedding if tied else ops.pack(weights.matrices["lm_head.weight"])
        weights.forget_pages()

    def forward(self, step: StepArrays[A], caches: Sequence[LayerCache[A]], hidden: A | None = None) -> A:
        """Store keys and values of all new tokens; the logits of `logits_rows`, (S, vocab_size).

        hidden: (T, hidden_size) float32 to be filled with the normalized last hidden states of all rows.
        """
        rows, residual = step.logits_rows, self._ops.embedding(step.token_ids, self._embedding)
        cu_seqlens, room = step.cu_seqlens, self._memory.activations(len(residual))
        last_cu_seqlens = step.logits_cu_seqlens if hidden is None else None
        self._ops.rms_norm(residual, self._first_norm, self.config.rms_norm_eps, out=room.stream)
        for layer, cache in zip(self._layers, caches, strict=True):
            self._store_keys(layer, step, cache, room)
            if layer is self._layers[-1] and last_cu_seqlens is not None:
                # Nothing after the last keys and values needs the other rows.
                query, residual, cu_seqlens = room.query[rows], residual[rows], last_cu_seqlens
                room = replace(self._memory.activations(len(rows)), query=query)
            self._attend(layer, step, cu_seqlens, cache, room)
            self._add_and_normalize(room.stream, residual, layer.mlp_norm)
            self._feed_forward(layer, room)
            self._add_and_normalize(room.stream, residual, layer.next_norm)
        if hidden is not None:
            hidden[...] = room.stream
        if not len(rows):
            return self._ops.empty(0, self.config.vocab_size)
        wanted = room.stream[rows] if last_cu_seqlens is None else room.stream
        return self._ops.linear(wanted, self._head, mode=self._mode, out=self._memory.logits(len(rows)))

    def _add_and_normalize(self, stream: A, residual: A, weight: A) -> None:
        """Add what a block computed to the residual, and normalize the sum into its place, for the next block."""
        self._ops.rms_norm(stream, weight, self.config.rms_norm_eps, residual, stream)

    def _store_keys(self, layer: _Layer[W, A], step: StepArrays[A], cache: LayerCache[A], room: Activations[A]) -> None:
        """Queries, and keys and values into the cache."""
        self._linear(room.stream, layer.qkv, room.qkv)
        self._ops.rope_and_cache(
            room.query, room.key, room.value, self._cos, self._sin, step.positions, step.slot_mapping, cache,
            layer.query_norm, layer.key_norm, self.config.rms_norm_eps,
        )  # fmt: skip

    def _attend(
        self, layer: _Layer[W, A], step: StepArrays[A], cu_seqlens: A, cache: LayerCache[A], room: Activations[A]
    ) -> None:
        scale = self.config.head_dim**-0.5
        self._ops.paged_attention(room.query, cache, cu_seqlens, step.seq_lens, step.block_tables, scale, room.attended)
        self._linear(room.flat, layer.output, room.stream)

    def _feed_forward(self, layer: _Layer[W, A], room: Activations[A]) -> None:
        self._linear(room.stream, layer.gate_up, room.gate_up)
        self._ops.silu_and_mul(room.gate_up, room.gated)
        self._linear(room.gated, layer.down, room.stream)

    def _linear(self, x: A, linear: _Linear[W, A], out: A) -> None:
        for part, start, stop in zip(linear.parts, (0, *linear.ends), linear.ends, strict=False):
            self._ops.linear(x, part, mode=self._mode, out=out if len(linear.parts) == 1 else out[:, start:stop])
        if linear.bias is not None:
            out += linear.bias

    def _pack_layer(self, weights: ModelWeights, prefix: str, next_norm: str) -> _Layer[W, A]:
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        layer = _Layer(
            qkv=self._pack(weights, [f"{attention}{name}_proj" for name in ("q", "k", "v")]),
            query_norm=self._optional(weights, f"{attention}q_norm.weight"),
            key_norm=self._optional(weights, f"{attention}k_norm.weight"),
            output=self._pack(weights, [f"{attention}o_proj"]),
            mlp_norm=self._ops.array(weights.vectors[f"{prefix}post_attention_layernorm.weight"]),
            gate_up=self._pack(weights, [f"{mlp}gate_proj", f"{mlp}up_proj"]),
            down=self._pack(weights, [f"{mlp}down_proj"]),
            next_norm=self._ops.array(weights.vectors[next_norm]),
        )
        weights.forget_pages()
        return layer

    def _optional(self, weights: ModelWeights, name: str) -> A | None:
        return self._ops.array(weights.vectors[name]) if name in weights.vectors else None

    def _pack(self, weights: ModelWeights, names: list[str]) -> _Linear[W, A]:
        stored = [weights.matrices[f"{name}.weight"] for name in names]
        biases = [weights.vectors[f"{name}.bias"] for name in names if f"{name}.bias" in weights.vectors]
        bias = self._ops.array(np.concatenate(biases)) if biases else None
        if len({weight.format for weight in stored}) == 1:
            stored = [_joined(stored)]
        ends = tuple(np.cumsum([weight.out_features for weight in stored]).tolist())
        return _Linear(tuple(self._ops.pack(weight) for weight in stored), ends, bias)


def _joined(parts: list[StoredWeight]) -> StoredWeight:
    """One matrix of the rows of several of one format; its blocks stay as they are."""
    if len(parts) == 1:
        return parts[0]
    scales = [part.scales for part in parts if part.scales is not None]
    return StoredWeight(
        parts[0].format, np.concatenate([part.data for part in parts]), np.concatenate(scales) if scales else None
    )
