"""transformers pipelines over the architectures of the benchmark, with random weights and no download."""

from __future__ import annotations

from typing import Any

import torch


def make_pipeline(family: str, size_hw: tuple[int, int]) -> Any:
    """Raises ImportError for a family that transformers does not have."""
    from transformers import pipeline

    size = {"height": size_hw[0], "width": size_hw[1]}
    makers = {"dfine": _dfine, "dinov3-vit": _dinov3}
    if family not in makers:
        raise ImportError(f"transformers has no {family}")
    torch.manual_seed(0)
    task, model, processor = makers[family](size)
    return pipeline(task, model=model.eval(), image_processor=processor, device="cpu")


def _dfine(size: dict[str, int]) -> tuple[str, Any, Any]:
    """D-FINE-N, by the numbers of its official configuration."""
    from transformers import DFineConfig, DFineForObjectDetection, RTDetrImageProcessor
    from transformers.models.hgnet_v2.configuration_hgnet_v2 import HGNetV2Config

    backbone = HGNetV2Config(
        depths=[1, 1, 2, 1],
        hidden_sizes=[64, 256, 512, 1024],
        stem_channels=[3, 16, 16],
        stage_in_channels=[16, 64, 256, 512],
        stage_mid_channels=[16, 32, 64, 128],
        stage_out_channels=[64, 256, 512, 1024],
        stage_num_blocks=[1, 1, 2, 1],
        stage_downsample=[False, True, True, True],
        stage_light_block=[False, False, True, True],
        stage_kernel_size=[3, 3, 5, 5],
        stage_numb_of_layers=[3, 3, 3, 3],
        use_learnable_affine_block=True,
        out_features=["stage3", "stage4"],
    )
    config = DFineConfig(
        backbone_config=backbone,
        encoder_in_channels=[512, 1024],
        feat_strides=[16, 32],
        num_feature_levels=2,
        d_model=128,
        encoder_hidden_dim=128,
        encoder_ffn_dim=512,
        encode_proj_layers=[1],
        decoder_in_channels=[128, 128],
        decoder_ffn_dim=512,
        decoder_layers=3,
        decoder_n_points=[6, 6],
        hidden_expansion=0.34,
        depth_mult=0.5,
        num_queries=300,
        num_labels=80,
    )
    processor = RTDetrImageProcessor(size=size, do_resize=True, do_rescale=True, do_normalize=False, do_pad=False)
    return "object-detection", DFineForObjectDetection(config), processor


def _dinov3(size: dict[str, int]) -> tuple[str, Any, Any]:
    """DINOv3 ViT-S/16."""
    from transformers import DINOv3ViTConfig, DINOv3ViTImageProcessor, DINOv3ViTModel

    config = DINOv3ViTConfig(
        hidden_size=384, intermediate_size=1536, num_hidden_layers=12, num_attention_heads=6, num_register_tokens=4
    )
    return "image-feature-extraction", DINOv3ViTModel(config), DINOv3ViTImageProcessor(size=size)
