from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.families.rfdetr_infer import RFDetrConfig, build_model

Tensors = dict[str, torch.Tensor]

GROUPS = 3


@pytest.fixture(scope="session")
def hugging_face(randomize: Callable[[nn.Module, int], nn.Module]) -> Callable[..., Any]:
    """A tiny `RfDetrForObjectDetection`: four blocks of 16-pixel patches, two windows per side."""
    from transformers import RfDetrConfig, RfDetrForObjectDetection

    def build(**changes: Any) -> Any:
        backbone = {
            "model_type": "rf_detr_dinov2",
            "hidden_size": 48,
            "num_hidden_layers": 4,
            "num_attention_heads": 3,
            "image_size": 64,
            "patch_size": 16,
            "num_windows": 2,
            "out_features": ["stage1", "stage3"],
        }
        numbers = {
            "d_model": 32,
            "decoder_ffn_dim": 40,
            "decoder_n_points": 2,
            "decoder_layers": 2,
            "decoder_self_attention_heads": 4,
            "decoder_cross_attention_heads": 8,
            "num_queries": 6,
            "num_labels": 5,
            "group_detr": GROUPS,
        }
        torch.manual_seed(0)
        model = RfDetrForObjectDetection(RfDetrConfig(backbone_config=backbone, **(numbers | changes)))
        return randomize(model, 1)

    return build


@pytest.fixture(scope="session")
def published() -> Callable[[str], RFDetrConfig]:
    """The config of a published detector, by the name of its size."""
    numbers: dict[str, tuple[int, int, int, tuple[float, ...]]] = {
        "nano": (16, 24, 2, (1.0,)),
        "small": (16, 32, 3, (1.0,)),
        "medium": (16, 36, 4, (1.0,)),
        "large": (16, 44, 4, (1.0,)),
        "base": (14, 37, 3, (1.0,)),
        "large (2025)": (14, 37, 3, (2.0, 0.5)),
    }

    def config(name: str) -> RFDetrConfig:
        patch, side, layers, scales = numbers[name]
        wide = len(scales) == 2
        return RFDetrConfig(
            vit_dim=768 if wide else 384,
            vit_depth=12,
            vit_heads=12 if wide else 6,
            vit_ffn=3072 if wide else 1536,
            patch=patch,
            position_side=side,
            windows=4 if patch == 14 else 2,
            after=(2, 5, 8, 11) if patch == 14 else (3, 6, 9, 12),
            scales=scales,
            projector_width=192 if wide else 128,
            projector_blocks=3,
            projector_eps=1e-6,
            dim=384 if wide else 256,
            ffn=2048,
            layers=layers,
            self_heads=12 if wide else 8,
            cross_heads=24 if wide else 16,
            points=4 if wide else 2,
            classes=91,
            queries=300,
            skip_border=False,
        )

    return config


@pytest.fixture(scope="session")
def official_state() -> Callable[..., Tensors]:
    """The state dict of a released file with `groups` query groups, without data unless a model is given."""

    def state(config: RFDetrConfig, *, groups: int = 13) -> Tensors:
        with torch.device("meta"):
            own = build_model(config, grid=config.windows).state_dict()
        own["vit.mask_token"] = torch.empty(1, config.vit_dim, device="meta")
        return _official(own, groups)

    return state


def _official(own: Tensors, groups: int) -> Tensors:
    named: Tensors = {}
    for key, value in own.items():
        if key.endswith("num_points_scale"):
            continue
        if ".attn.qkv." in key:
            for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                named[_official_name(key.replace("attn.qkv", f"attention.attention.{part}"))] = piece
        elif key in ("refpoint_embed", "query_feat"):
            named[f"{key}.weight"] = torch.cat([value] * groups)
        elif key.startswith("enc_out"):
            head, _, rest = key.partition(".")
            named |= {f"transformer.{head}.{group}.{rest}": value for group in range(groups)}
        else:
            named[_official_name(key)] = value
    return named


def _official_name(key: str) -> str:
    for old, new in (
        ("vit.pos_embed", "vit.embeddings.position_embeddings"),
        ("vit.cls_token", "vit.embeddings.cls_token"),
        ("vit.mask_token", "vit.embeddings.mask_token"),
        ("vit.patch_embed.proj.", "vit.embeddings.patch_embeddings.projection."),
        ("vit.blocks.", "vit.encoder.layer."),
        (".attn.proj.", ".attention.output.dense."),
        ("vit.norm.", "vit.layernorm."),
        (".ls1.gamma", ".layer_scale1.lambda1"),
        (".ls2.gamma", ".layer_scale2.lambda1"),
        ("vit.", "backbone.0.encoder.encoder."),
        ("projector.", "backbone.0.projector."),
    ):
        key = key.replace(old, new, 1)
    return f"transformer.{key}" if key.startswith("decoder.") else key


@pytest.fixture
def through_file(tmp_path: Path) -> Callable[..., Checkpoint]:
    """A .pth as the official trainer writes it, with the Namespace of its command line."""

    def read(state: Tensors, args: dict[str, Any], **parts: Any) -> Checkpoint:
        path = tmp_path / "checkpoint_best_regular.pth"
        torch.save({"model": state, "args": Namespace(**args), **parts}, path)
        return read_checkpoint(path)

    return read
