from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import silu

from vtk.exporters.modules.deimv2 import RMS_NORM_EPS, RMSNorm, SwiGLU
from vtk.exporters.modules.deimv2_backbone import DinoFeatures, DinoSTA, STAConfig
from vtk.exporters.modules.deimv2_encoder import GlobalFusion, LiteEncoder, LiteEncoderConfig, PooledConvNorm, SumFusion
from vtk.exporters.modules.dino_vit import DinoEmbedder, DinoViT, ViTConfig
from vtk.exporters.modules.fold import fold_batch_norms, merge_rep_vgg

VIT = ViTConfig(
    dim=32, depth=3, heads=2, ffn="swiglu", ffn_dim=48, activation="silu", patch=16, registers=2, qkv_bias=True,
    norm_eps=1e-5,
)  # fmt: skip


def shake(module: nn.Module) -> None:
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)


def test_rms_norm_is_that_of_torch() -> None:
    ours, theirs = RMSNorm(12).double(), nn.RMSNorm(12, eps=RMS_NORM_EPS).double()
    nn.init.normal_(ours.scale)
    theirs.weight.data.copy_(ours.scale)
    x = torch.randn(2, 5, 12, dtype=torch.double)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-12, rtol=1e-12)


def test_the_first_half_of_the_rows_is_the_gate() -> None:
    block = SwiGLU(6, 10).double()
    x = torch.randn(2, 3, 6, dtype=torch.double)
    weight, bias = block.w12.weight, block.w12.bias
    gate, value = x @ weight[:5].T + bias[:5], x @ weight[5:].T + bias[5:]
    torch.testing.assert_close(block(x), (silu(gate) * value) @ block.w3.weight.T + block.w3.bias)


@pytest.mark.parametrize("smooth", [False, True])
def test_folding_keeps_the_outputs_and_leaves_no_norm(smooth: bool) -> None:
    torch.manual_seed(0)
    block = SumFusion(8, 6, 2, smooth=smooth).double().eval()
    shake(block)
    folded = copy.deepcopy(block)
    fold_batch_norms(folded)
    merge_rep_vgg(folded)
    x = torch.randn(2, 8, 9, 7, dtype=torch.double)
    torch.testing.assert_close(folded(x), block(x))
    kinds = [type(module) for module in folded.modules()]
    assert nn.BatchNorm2d not in kinds
    # Two plain convolutions, and per branch one, its two bottlenecks, and the smoothing one.
    assert kinds.count(nn.Conv2d) == 2 + 2 * (1 + 2 + smooth)


def test_pooling_counts_the_border_as_zeros() -> None:
    layer = PooledConvNorm(1).eval()
    nn.init.ones_(layer.conv.weight)
    layer.norm.eps = 0.0
    came = layer(torch.full((1, 1, 4, 4), 9.0))
    assert torch.equal(came, silu(torch.tensor([[[[4.0, 6.0], [6.0, 9.0]]]])))


def test_the_global_mean_is_that_of_one_picture() -> None:
    torch.manual_seed(0)
    layer, (a, b) = GlobalFusion(3).eval(), torch.randn(2, 1, 3, 4, 5)
    assert torch.equal(layer(torch.cat([a, b]))[1:], layer(torch.cat([b, b]))[1:])
    shifted = a - a.mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(layer(shifted), layer.cv(shifted))


def test_the_lite_encoder_makes_two_levels_of_one() -> None:
    encoder = LiteEncoder(LiteEncoderConfig(in_channels=10, hidden=8, fusion_width=3, bottlenecks=1)).eval()
    fine, coarse = encoder([torch.randn(2, 10, 6, 4)])
    assert (fine.shape, coarse.shape) == ((2, 8, 6, 4), (2, 8, 3, 2))


def test_features_of_the_last_block_are_the_patches_of_the_embedder() -> None:
    torch.manual_seed(0)
    vit = DinoViT(VIT).eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        first, last = DinoFeatures(vit, (4, 6), (0, 2))(images)
        patches = DinoEmbedder(vit, (4, 6))(images)[-1]
    assert first.shape == last.shape == (2, 32, 4, 6)
    torch.testing.assert_close(last.flatten(2).transpose(1, 2), patches, atol=1e-6, rtol=0)
    assert (first - last).abs().max() > 0.1


def test_a_transformer_without_scale_and_norm_has_none_in_its_names() -> None:
    names = set(DinoViT(replace(VIT, layer_scale=False, final_norm=False)).state_dict())
    assert names < set(DinoViT(VIT).state_dict())
    assert not any(".ls" in name or name.startswith("norm.") for name in names)


def test_maps_have_strides_8_16_and_32() -> None:
    backbone = DinoSTA(STAConfig(VIT, planes=4, hidden=10, after=(0, 1, 2)), input_hw=(64, 96)).eval()
    backbone.bake()
    with torch.no_grad():
        shapes = [tuple(x.shape) for x in backbone(torch.randn(2, 3, 64, 96))]
    assert shapes == [(2, 10, 8, 12), (2, 10, 4, 6), (2, 10, 2, 3)]
