"""What distinguishes one dense decoder from another, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from vtk.errors import CheckpointError

MAX_DIMENSION = 1 << 24
_LAYER_SIZES = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
_SIZES = ("num_layers", "vocab_size", "max_positions", *_LAYER_SIZES)


@dataclass(frozen=True)
class Architecture:
    """A decoder family. gguf_interleaves_qk: GGUF holds its query and key rows in the order of interleaved RoPE."""

    name: str
    hf_class: str
    qkv_bias: bool = False
    qk_norm: bool = False
    gguf_interleaves_qk: bool = False


ARCHITECTURES = (
    Architecture("llama", "LlamaForCausalLM", gguf_interleaves_qk=True),
    Architecture("qwen2", "Qwen2ForCausalLM", qkv_bias=True),
    Architecture("qwen3", "Qwen3ForCausalLM", qk_norm=True),
)


def find_architecture(name: str, source: str) -> Architecture:
    """By GGUF name or Hugging Face class; CheckpointError, with the list of known ones, for any other."""
    for architecture in ARCHITECTURES:
        if name in (architecture.name, architecture.hf_class):
            return architecture
    known = ", ".join(f"{entry.name} ({entry.hf_class})" for entry in ARCHITECTURES)
    raise CheckpointError(f"{source} holds a model of the architecture '{name}'.", hint=f"vtk serves: {known}.")


@dataclass(frozen=True)
class ModelConfig:
    """A Llama-like decoder: pre-norm RMSNorm, grouped-query attention with rotate-half RoPE, SwiGLU.

    rope_factors: divisors of the head_dim / 2 rotation frequencies (empty: none), which is what every static RoPE
    scaling comes to. qkv_bias, output_bias: biases of the attention projections. qk_norm: RMSNorm of each query and key
    head before the rotation. tie_embeddings: the output matrix is the embedding table.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_norm_eps: float
    rope_theta: float
    rope_factors: tuple[float, ...] = ()
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        bad = [f"{name} {size}" for name in _SIZES if not 1 <= (size := getattr(self, name)) <= MAX_DIMENSION]
        if self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads:
            bad.append(f"{self.num_heads} heads over {self.num_kv_heads} key-value heads")
        if self.head_dim % 2 or (self.rope_factors and len(self.rope_factors) != self.head_dim // 2):
            bad.append(f"head_dim {self.head_dim} with {len(self.rope_factors)} RoPE factors")
        if not (0 < self.rms_norm_eps < 1 and self.rope_theta > 0 and all(f > 0 for f in self.rope_factors)):
            bad.append("an epsilon, RoPE base or factor that is not positive")
        if bad:
            raise CheckpointError(f"The model's configuration cannot be: {', '.join(bad)}.")

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the model by its Hugging Face name without `model.`, with its shape (outputs first)."""
        hidden, query, kv = self.hidden_size, self.query_size, self.kv_size
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.v_proj.weight": (kv, hidden),
            "self_attn.o_proj.weight": (hidden, query),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (self.intermediate_size, hidden),
            "mlp.up_proj.weight": (self.intermediate_size, hidden),
            "mlp.down_proj.weight": (hidden, self.intermediate_size),
        }
        if self.qkv_bias:
            layer |= {f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", query), ("k", kv), ("v", kv))}
        if self.output_bias:
            layer["self_attn.o_proj.bias"] = (hidden,)
        if self.qk_norm:
            layer |= {f"self_attn.{name}_norm.weight": (self.head_dim,) for name in ("q", "k")}
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (self.vocab_size, hidden),
            "norm.weight": (hidden,),
        }
        if not self.tie_embeddings:
            shapes["lm_head.weight"] = shapes["embed_tokens.weight"]
        for i in range(self.num_layers):
            shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
        return shapes
