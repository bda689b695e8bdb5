"""SAM3's heads: how well a query fits the prompt, and the mask of each.

Source: facebookresearch/sam3, maskformer_segmentation.py and model_misc.py (DotProductScoring).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from vtk.exporters.modules.layers import MLP
from vtk.exporters.modules.sam3_config import NORM_EPS, Sam3Config
from vtk.exporters.modules.sam3_layers import Attention, GroupNorm, norm

MAX_LOGIT = 12.0
NORM_GROUPS = 8


class Sam3Scoring(nn.Module):
    """The dot product of a query with the mean of the prompt's tokens."""

    def __init__(self, config: Sam3Config) -> None:
        super().__init__()
        dim = config.dim
        self.scale = dim**-0.5
        self.prompt_mlp = MLP(dim, config.scoring_ffn, dim, 2, act="relu")
        self.prompt_norm = norm(dim)
        self.prompt_proj = nn.Linear(dim, dim)
        self.query_proj = nn.Linear(dim, dim)

    def forward(self, queries: Tensor, prompt: Tensor, valid: Tensor) -> Tensor:
        """queries (1, Q, D), prompt (1, L, D), valid (1, L) of 1 and 0 -> logits (1, Q)."""
        tokens = self.prompt_norm(prompt + self.prompt_mlp(prompt))
        weights = valid.to(tokens.dtype)[..., None]
        pooled = (tokens * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)
        logits: Tensor = self.query_proj(queries) @ self.prompt_proj(pooled).transpose(1, 2) * self.scale
        return logits.squeeze(-1).clamp(-MAX_LOGIT, MAX_LOGIT)


class Sam3Masks(nn.Module):
    """Pixel features from the three maps, and their product with every query."""

    def __init__(self, config: Sam3Config) -> None:
        super().__init__()
        dim = config.dim
        self.prompt_attn = Attention(dim, config.heads)
        self.prompt_norm = norm(dim)
        self.convs = nn.ModuleList(nn.Conv2d(dim, dim, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(GroupNorm(NORM_GROUPS, dim, eps=NORM_EPS) for _ in range(2))
        self.embedder = MLP(dim, dim, dim, 3, act="relu")
        self.instance = nn.Conv2d(dim, dim, 1)
        self.semantic = nn.Conv2d(dim, 1, 1)

    def forward(
        self, queries: Tensor, maps: Sequence[Tensor], fused: Tensor, prompt: Tensor, prompt_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        """queries (1, Q, D), maps from fine to coarse, fused (1, T, D) in place of the coarsest, prompt (1, L, D).

        Returns mask logits (1, Q, 4g, 4g) and semantic logits (1, 1, 4g, 4g).
        """
        fine, middle, coarse = maps
        fused = fused + self.prompt_attn(self.prompt_norm(fused), prompt, prompt, prompt_bias)
        pixels = fused.transpose(1, 2).reshape(coarse.shape)
        for finer, conv, group_norm in zip((middle, fine), self.convs, self.norms, strict=True):
            pixels = F.interpolate(pixels, size=finer.shape[-2:], mode="nearest") + finer
            pixels = F.relu(group_norm(conv(pixels)))
        masks = self.embedder(queries) @ self.instance(pixels).flatten(2)
        return masks.unflatten(-1, pixels.shape[-2:]), self.semantic(pixels)
