"""DEIMv2, Atto to X, with the numbers of the official code (which transformers' own port does not have)."""

from __future__ import annotations

import torch
from torch import nn

from vtk.errors import UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families import detector_choices as choose
from vtk.exporters.families.deimv2_config import DEIMv2Config, build_model
from vtk.exporters.families.deimv2_hub import HubFacts, check_sections, has_sections, read_facts
from vtk.exporters.families.deimv2_infer import infer_config, is_tiny
from vtk.exporters.families.deimv2_layout import own_names
from vtk.exporters.families.detector_infer import trained_size
from vtk.exporters.families.detector_spec import FP32_ISLANDS, MAX_DETECTIONS, detector_spec
from vtk.exporters.families.detector_tensors import Tensors
from vtk.exporters.families.dfine_layout import is_deployed
from vtk.exporters.family import Choice, Family, FamilyOptions, ModelSpec
from vtk.exporters.modules.deimv2_backbone import DinoSTA
from vtk.exporters.modules.dino_keys import apply_bias_masks
from vtk.exporters.modules.fold import fold_batch_norms, merge_rep_vgg
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

# Blocks whose outputs become the maps, from 0: the distilled ViT-Tiny, and DINOv3 ViT-S and S+.
TINY_AFTER, DINOV3_AFTER = (3, 7, 11), (5, 8, 11)

_OFFICIAL_QUERIES = {"Atto": 100, "Femto": 150, "Pico": 200}
_SIGNATURE = (
    "decoder.decoder.layers.0.swish_ffn.w12.weight",
    "decoder.decoder.layers.0.norm1.scale",
    "decoder.pre_bbox_head.layers.0.weight",
)
_BACKBONES = ("backbone.stem.stem1.conv.weight", "backbone.sta.stem.0.weight")


class DEIMv2(Family):
    """Official checkpoints, and the official model folders of the hub."""

    name = "deimv2"
    title = "DEIMv2 (HGNetV2, DINOv3)"
    layouts = ("official", "official-deploy", "hub")
    exact = True
    reads = ("num_queries", "class_names", "feature_blocks")
    ignorable = (r".*\.num_batches_tracked",)
    unused = (
        r".*\.num_batches_tracked",
        r"decoder\.(decoder\.)?(up|reg_scale)",
        r"decoder\.(anchors|valid_mask)",
        r"decoder\.denoising_class_embed\.weight",
        r"decoder\.decoder\.lqe_layers\.\d+\..*",
        r"decoder\.dec_score_head\.\d+\..*",
        r"encoder\.pos_embed\d+",
        r"backbone\.dinov3\.mask_token",
    )

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        names = checkpoint.tensors
        if not all(key in names for key in _SIGNATURE) or not any(key in names for key in _BACKBONES):
            return None
        if has_sections(checkpoint):
            return "hub"
        return "official-deploy" if is_deployed(names) else "official"

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        tensors, facts = own_names(checkpoint.tensors), read_facts(checkpoint)
        after, after_choices = _after(tensors, facts, options)
        config = infer_config(tensors, after)
        check_sections(checkpoint, config, trained_size(tensors, config.levels))
        input_hw, size_choices = choose.input_size(tensors, config.levels, options, stated=facts.input_hw)
        official = _OFFICIAL_QUERIES.get(config.variant, choose.DEFAULT_QUERIES)
        queries = choose.queries(config.levels, input_hw, options, official=official, stated=facts.queries)
        names, labels = choose.labels(config.classes, options)
        return detector_spec(
            self.name,
            variant=config.variant,
            layout=layout,
            config=config.to_json() | {"queries": int(queries.value)},
            recipe=_recipe(config, input_hw),
            queries=int(queries.value),
            classes=config.classes,
            names=names,
            choices=(*size_choices, *after_choices, *choose.points(tensors, config.points), queries, labels),
            fp32_islands=(*FP32_ISLANDS, "rope"),
            max_detections=facts.max_detections or MAX_DETECTIONS,
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, torch.Tensor]:
        return apply_bias_masks(own_names(checkpoint.tensors), checkpoint.path.name)

    def build(self, spec: ModelSpec) -> nn.Module:
        numbers = dict(spec.config)
        queries = numbers.pop("queries")
        return build_model(DEIMv2Config.from_json(numbers), input_hw=spec.input_hw, queries=queries)

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        fold_batch_norms(module)
        merge_rep_vgg(module)
        if isinstance(module.backbone, DinoSTA):
            module.backbone.bake()
        return module.eval()


def _recipe(config: DEIMv2Config, input_hw: tuple[int, int]) -> Recipe:
    """Only the DINOv3 backbones were trained with mean and standard deviation."""
    if config.sta is None:
        return Recipe(size_hw=input_hw)
    return Recipe(size_hw=input_hw, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _after(
    tensors: Tensors, facts: HubFacts, options: FamilyOptions
) -> tuple[tuple[int, int, int], tuple[Choice, ...]]:
    """The blocks to take maps from: as asked, else as config.json states, else those of the official configs.

    The hub's folders of S and M state those of L and X. Their training did not read that number and took every fourth
    block (DEIMv2 commit 403b3b6 and pull request 115), so that following it would lose accuracy without a word.
    """
    if "backbone.sta.stem.conv.weight" not in tensors:
        if options.feature_blocks is not None:
            raise UsageError("--feature-blocks means nothing for a model without a transformer as its backbone.")
        return TINY_AFTER, ()
    official = TINY_AFTER if is_tiny(tensors) else DINOV3_AFTER
    if options.feature_blocks is not None:
        value, reason, assumed = _three(options.feature_blocks), "as asked", False
    elif official == TINY_AFTER and facts.after == DINOV3_AFTER:
        reason = "config.json states 5,8,11, but the official ViT-Tiny models were trained with these"
        value, assumed = official, True
    elif facts.after is not None:
        value, reason, assumed = facts.after, "stated by config.json", False
    else:
        value, reason, assumed = official, "not in the checkpoint; official configs use these", True
    text = ",".join(map(str, value))
    return value, (Choice("feature blocks", text, "--feature-blocks", ("N,N,N",), reason, assumed),)


def _three(blocks: tuple[int, ...]) -> tuple[int, int, int]:
    if len(blocks) != 3 or not blocks[0] < blocks[1] < blocks[2]:
        came = ",".join(map(str, blocks))
        raise UsageError(f"--feature-blocks must be three rising numbers, got {came}.", hint="For example: 3,7,11")
    return blocks[0], blocks[1], blocks[2]
