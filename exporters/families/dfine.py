"""D-FINE and DEIM: two readings of one architecture, which differ in the activation of the decoder only."""

from __future__ import annotations

import torch
from torch import nn

from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families import detector_choices as choose
from vtk.exporters.families.detector_spec import detector_spec
from vtk.exporters.families.dfine_choices import ACTIVATIONS, reading
from vtk.exporters.families.dfine_config import DFineConfig, build_model
from vtk.exporters.families.dfine_infer import infer_config
from vtk.exporters.families.dfine_layout import as_trained, is_deployed
from vtk.exporters.family import Family, FamilyOptions, ModelSpec
from vtk.exporters.modules.fold import fold_batch_norms, merge_rep_vgg
from vtk.preprocess.recipe import Recipe

_SIGNATURE = (
    "backbone.stem.stem1.conv.weight",
    "encoder.encoder.0.layers.0.self_attn.in_proj_weight",
    "decoder.decoder.layers.0.gateway.gate.weight",
    "decoder.decoder.layers.0.linear1.weight",
    "decoder.pre_bbox_head.layers.0.weight",
)


class DFine(Family):
    """Official checkpoints of both repositories; the module loads their tensors by name."""

    name = "dfine"
    title = "D-FINE / DEIM (HGNetV2)"
    aliases = ("deim",)
    layouts = ("official", "official-deploy")
    exact = True
    reads = ("num_queries", "class_names")
    ignorable = (r".*\.num_batches_tracked",)
    unused = (
        r".*\.num_batches_tracked",
        r"decoder\.(decoder\.)?(up|reg_scale)",
        r"decoder\.(anchors|valid_mask)",
        r"decoder\.denoising_class_embed\.weight",
        r"decoder\.decoder\.lqe_layers\.\d+\..*",
        r"decoder\.dec_score_head\.\d+\..*",
        r"encoder\.pos_embed\d+",
    )

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        if not all(key in checkpoint.tensors for key in _SIGNATURE):
            return None
        return "official-deploy" if is_deployed(checkpoint.tensors) else "official"

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        tensors = as_trained(checkpoint.tensors)
        config = infer_config(tensors)
        family = reading(checkpoint, config, options)
        input_hw, size_choices = choose.input_size(tensors, config.levels, options)
        queries = choose.queries(config.levels, input_hw, options)
        names, labels = choose.labels(config.classes, options)
        numbers = config.to_json() | {"queries": int(queries.value), "activation": ACTIVATIONS[family.value]}
        return detector_spec(
            family.value,
            variant=config.variant,
            layout=layout,
            config=numbers,
            recipe=Recipe(size_hw=input_hw),
            queries=int(queries.value),
            classes=config.classes,
            names=names,
            choices=(family, *size_choices, *choose.points(tensors, config.points), queries, labels),
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, torch.Tensor]:
        return as_trained(checkpoint.tensors)

    def build(self, spec: ModelSpec) -> nn.Module:
        numbers = dict(spec.config)
        queries, act = numbers.pop("queries"), numbers.pop("activation")
        return build_model(DFineConfig.from_json(numbers), input_hw=spec.input_hw, queries=queries, act=act)

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        fold_batch_norms(module)
        merge_rep_vgg(module)
        return module.eval()
