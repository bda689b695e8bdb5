"""RT-DETRv2 with its ResNet backbones, as trained by its own repository or by DEIM."""

from __future__ import annotations

import re

import torch
from torch import nn

from vtk.errors import UnknownFamilyError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families import detector_choices as choose
from vtk.exporters.families.detector_spec import detector_spec
from vtk.exporters.families.rtdetrv2_infer import RTDetrConfig, build_model, infer_config
from vtk.exporters.families.rtdetrv2_keys import from_hugging_face, is_hugging_face
from vtk.exporters.family import Choice, Family, FamilyOptions, ModelSpec
from vtk.exporters.modules.fold import fold_batch_norms, merge_rep_vgg
from vtk.preprocess.recipe import Recipe

_SIGNATURE = (
    "backbone.conv1.conv1_1.conv.weight",
    "encoder.encoder.0.layers.0.self_attn.in_proj_weight",
    "decoder.decoder.layers.0.cross_attn.value_proj.weight",
    "decoder.decoder.layers.0.cross_attn.num_points_scale",
    "decoder.query_pos_head.layers.0.weight",
)


class RTDetrV2(Family):
    """Official checkpoints of both repositories, whose tensors load by name, and those that transformers writes."""

    name = "rtdetrv2"
    title = "RT-DETRv2 / DEIM-RT-DETRv2 (ResNet)"
    layouts = ("official", "huggingface")
    exact = True
    reads = ("num_queries", "class_names")
    ignorable = (r".*\.num_batches_tracked",)
    unused = (
        r".*\.num_batches_tracked",
        r"decoder\.(anchors|valid_mask)",
        r"decoder\.denoising_class_embed\.weight",
        r"encoder\.pos_embed\d+",
    )

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        if all(key in checkpoint.tensors for key in _SIGNATURE):
            return "official"
        return "huggingface" if is_hugging_face(checkpoint.tensors) else None

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        _refuse_discrete(checkpoint)
        tensors = self._named(checkpoint, layout)
        config = infer_config(tensors, official=layout == "official")
        # DEIM's head is deeper, and its decoder has another activation.
        trainer, act = ("DEIM-RT-DETRv2", "silu") if config.position_depth == 3 else ("RT-DETRv2", "relu")
        input_hw, size_choices = choose.input_size(tensors, config.levels, options)
        beside = checkpoint.metadata.get("config", {})
        queries = choose.queries(config.levels, input_hw, options, stated=beside.get("num_queries"))
        names, labels = choose.labels(config.classes, options)
        numbers = config.to_json() | {"queries": int(queries.value), "activation": act}
        return detector_spec(
            self.name,
            variant=f"{trainer} {config.variant}",
            layout=layout,
            config=numbers,
            recipe=Recipe(size_hw=input_hw),
            queries=int(queries.value),
            classes=config.classes,
            names=names,
            choices=(*size_choices, *choose.points(tensors, config.points), queries, labels, *_layers(config)),
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, torch.Tensor]:
        return self._named(checkpoint, spec.layout)

    def build(self, spec: ModelSpec) -> nn.Module:
        numbers = dict(spec.config)
        queries, act = numbers.pop("queries"), numbers.pop("activation")
        return build_model(RTDetrConfig.from_json(numbers), input_hw=spec.input_hw, queries=queries, act=act)

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        fold_batch_norms(module)
        merge_rep_vgg(module)
        return module.eval()

    @staticmethod
    def _named(checkpoint: Checkpoint, layout: str) -> dict[str, torch.Tensor]:
        return from_hugging_face(checkpoint.tensors) if layout == "huggingface" else dict(checkpoint.tensors)


def _layers(config: RTDetrConfig) -> tuple[Choice, ...]:
    if config.used == config.layers:
        return ()
    value, reason = f"{config.used} of {config.layers}", "the official R50-m answers after its third layer"
    return (Choice("decoder layers", value, "--family", (), reason, assumed=True),)


def _refuse_discrete(checkpoint: Checkpoint) -> None:
    """Models with discrete sampling have the same names and shapes and compute something else."""
    if re.search(r"(^|[_-])dsp([_.-]|$)", checkpoint.path.name.lower()):
        raise UnknownFamilyError(
            f"{checkpoint.path.name} looks like RT-DETRv2 with discrete sampling (dsp), which is not supported.",
            hint="Rename the file if it samples bilinearly, as all others do.",
        )
