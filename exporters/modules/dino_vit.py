"""The vision transformer of DINOv2 and DINOv3, under the parameter names of the official DINOv3 code.

An own module, because none of the libraries' fits all four needs: the numbers of the official code; the same class for
the official, Hugging Face and timm layouts; position constants computed once in float32 and baked for the input size,
so that the graph holds no Range, Tile or If (TensorRT misreads RoPE that is traced); and attention as
MatMul-Softmax-MatMul with the query scaled first, which neither overflows in half precision nor meets the fusions that
TensorRT gets wrong for `scaled_dot_product_attention`.

Sources: facebookresearch/dinov3 (RoPE, SwiGLU, register tokens), facebookresearch/dinov2 (learned positions),
Darcet et al. 2024 (registers), Su et al. 2021 (RoPE).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PosInterpolation = Literal["bicubic_offset", "bicubic", "bicubic_antialias"]

# The offset that the official DINOv2 models without registers were trained to expect (dinov2/hub/backbones.py).
_OFFSET = 0.1


@dataclass(frozen=True)
class ViTConfig:
    """`pos_side` is the side of the learned position table (DINOv2) or None for RoPE (DINOv3).

    `ffn_dim` is the inner width: rows of fc1, or of the SwiGLU gate. `activation` acts in the MLP or on that gate. The
    distilled ViT-Tiny of DEIMv2 has neither `layer_scale` nor `final_norm`.
    """

    dim: int
    depth: int
    heads: int
    ffn: Literal["mlp", "swiglu"]
    ffn_dim: int
    activation: Literal["gelu", "silu"]
    patch: int
    registers: int
    qkv_bias: bool
    norm_eps: float
    rope_base: float = 100.0
    pos_side: int | None = None
    pos_interpolation: PosInterpolation = "bicubic"
    layer_scale: bool = True
    final_norm: bool = True

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready; leaves out what belongs to the other kind of positions."""
        foreign = ("pos_side", "pos_interpolation") if self.pos_side is None else ("rope_base",)
        return {key: value for key, value in asdict(self).items() if key not in foreign}

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> ViTConfig:
        """Pick the fields of this class out of a `ModelSpec.config`."""
        return cls(**{field.name: config[field.name] for field in fields(cls) if field.name in config})


class DinoViT(nn.Module):
    """Weights and blocks. Token order: class, registers, patches in row-major order."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.cls_token = nn.Parameter(torch.randn(1, 1, config.dim))
        if config.registers:
            self.storage_tokens = nn.Parameter(torch.randn(1, config.registers, config.dim))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, config.dim, config.patch, config.patch)})
        if config.pos_side is None:
            self.rope_embed = _RopePeriods(config)
        else:
            self.pos_embed = nn.Parameter(torch.randn(1, 1 + config.pos_side**2, config.dim))
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps) if config.final_norm else nn.Identity()

    def embed_patches(self, images: Tensor) -> Tensor:
        """Images (N, 3, H, W) to patch tokens (N, h*w, dim)."""
        patches: Tensor = self.patch_embed["proj"](images)
        return patches.flatten(2).transpose(1, 2)

    def prefix_tokens(self) -> Tensor:
        """(1, 1 + registers, dim): the class token, with its learned position if it has one, and the registers."""
        cls_token = self.cls_token if self.config.pos_side is None else self.cls_token + self.pos_embed[:, :1]
        return torch.cat([cls_token, self.storage_tokens], dim=1) if self.config.registers else cls_token

    def encode(self, tokens: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """Blocks and final norm over (N, T, dim)."""
        for block in self.blocks:
            tokens = block(tokens, rope)
        normalized: Tensor = self.norm(tokens)
        return normalized


class DinoEmbedder(nn.Module):
    """Export wrapper for one input size: images (N, 3, H, W) to cls (N, D), registers (N, R, D), patches (N, h*w, D).

    Without registers the middle one is left out. All tokens have passed the final norm.
    """

    cos: Tensor
    sin: Tensor
    positions: Tensor
    prefix: Tensor

    def __init__(self, vit: DinoViT, grid_hw: tuple[int, int]) -> None:
        super().__init__()
        self.vit, config = vit, vit.config
        self.num_prefix = 1 + config.registers
        self.uses_rope = config.pos_side is None
        with torch.no_grad():
            self.register_buffer("prefix", vit.prefix_tokens().clone())
            if self.uses_rope:
                cos, sin = rope_tables(vit.rope_embed.periods, grid_hw, num_prefix=self.num_prefix)
                self.register_buffer("cos", cos)
                self.register_buffer("sin", sin)
            else:
                self.register_buffer("positions", interpolate_positions(vit.pos_embed, grid_hw, config))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        patches = self.vit.embed_patches(images)
        if not self.uses_rope:
            patches = patches + self.positions
        tokens = torch.cat([self.prefix.expand(images.shape[0], -1, -1), patches], dim=1)
        tokens = self.vit.encode(tokens, (self.cos, self.sin) if self.uses_rope else None)
        cls, patches = tokens[:, 0], tokens[:, self.num_prefix :]
        return (cls, tokens[:, 1 : self.num_prefix], patches) if self.num_prefix > 1 else (cls, patches)


def rope_tables(periods: Tensor, grid_hw: tuple[int, int], *, num_prefix: int = 0) -> tuple[Tensor, Tensor]:
    """cos and sin, each (num_prefix + h*w, head_dim) float32, for `rotate_half`.

    Patch centers are normalized to [-1, 1] on each axis by itself; the angles are 2*pi*coordinate/period, y before x.
    Prefix rows are cos 1, sin 0: these tokens have no position. Computed in float32 always, since half precision moves
    the angles by up to 0.03 (dinov3 RopePositionEmbedding, normalize_coords="separate").
    """
    axes = [(torch.arange(size, dtype=torch.float32) + 0.5) / size * 2 - 1 for size in grid_hw]
    coordinates = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)
    angles = (2 * math.pi * coordinates[:, :, None] / periods.float()).flatten(1)
    angles = torch.cat([angles, angles], dim=1)
    prefix = torch.zeros(num_prefix, angles.shape[1])
    return torch.cat([prefix + 1, angles.cos()]), torch.cat([prefix, angles.sin()])


def rope_periods(config: ViTConfig) -> Tensor:
    """(head_dim / 4,) float32: what the official files hold, and the other layouts leave out and mean."""
    count = config.dim // config.heads // 4
    exponents = torch.arange(count, dtype=torch.float32) / count
    return torch.tensor(config.rope_base) ** exponents


def rotate_half(x: Tensor) -> Tensor:
    """(..., d): pair i is (i, i + d/2), not neighbors as in the interleaved form; the weights fit only this one."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def interpolate_positions(pos_embed: Tensor, grid_hw: tuple[int, int], config: ViTConfig) -> Tensor:
    """The learned table (1, 1 + side*side, D) as patch positions (1, h*w, D) for another grid, in float32.

    `bicubic_offset` is the official DINOv2 code without registers (scale factors with +0.1, which also shift the
    samples), `bicubic_antialias` the one with registers and timm, `bicubic` Hugging Face without registers.
    """
    patches, side = pos_embed[:, 1:].float(), config.pos_side
    if side is None:
        raise ValueError("a RoPE model has no position table")
    if grid_hw == (side, side):
        return patches.clone()
    square = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    if config.pos_interpolation == "bicubic_offset":
        factors = [(size + _OFFSET) / side for size in grid_hw]
        resized = F.interpolate(square, scale_factor=factors, mode="bicubic")
    else:
        antialias = config.pos_interpolation == "bicubic_antialias"
        resized = F.interpolate(square, size=list(grid_hw), mode="bicubic", antialias=antialias)
    return resized.permute(0, 2, 3, 1).flatten(1, 2)


class _RopePeriods(nn.Module):
    """Holds the periods that official files store; other layouts leave them out and mean these values."""

    periods: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.register_buffer("periods", rope_periods(config))


class _Block(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.attn = _Attention(config)
        self.ls1 = _LayerScale(config.dim) if config.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.mlp: nn.Module = _SwiGLU(config) if config.ffn == "swiglu" else _MLP(config)
        self.ls2 = _LayerScale(config.dim) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x), rope))
        update: Tensor = self.ls2(self.mlp(self.norm2(x)))
        return x + update


class _Attention(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.dim // config.heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=config.qkv_bias)
        self.proj = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        qkv = self.qkv(x).reshape(*x.shape[:2], 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if rope is not None:
            cos, sin = rope
            q = q * cos + rotate_half(q) * sin
            k = k * cos + rotate_half(k) * sin
        scores = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)
        mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(x.shape)
        out: Tensor = self.proj(mixed)
        return out


class _MLP(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.dim, config.ffn_dim)
        self.fc2 = nn.Linear(config.ffn_dim, config.dim)
        self.act = _activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class _SwiGLU(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.ffn_dim)
        self.w2 = nn.Linear(config.dim, config.ffn_dim)
        self.w3 = nn.Linear(config.ffn_dim, config.dim)
        self.act = _activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w3(self.act(self.w1(x)) * self.w2(x))
        return out


class _LayerScale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


def _activation(name: Literal["gelu", "silu"]) -> nn.Module:
    return nn.GELU() if name == "gelu" else nn.SiLU()
