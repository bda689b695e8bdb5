"""Any model of timm by its name: classifiers, or pooled features where the checkpoint has no head.

timm's registry says how to build and how to feed it; nothing is downloaded. Source: huggingface/pytorch-image-models.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from vtk.errors import ExportError, MissingDependencyError, UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import Choice, Family, FamilyOptions, ModelSpec, OutputSpec
from vtk.exporters.modules.dino_keys import hf_config
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Interpolation, Recipe

_INTERPOLATIONS: Mapping[str, Interpolation] = {"bilinear": "pil_bilinear", "bicubic": "pil_bicubic"}


class TimmModel(Family):
    """Asked for by `--timm-name` alone: thousands of models share names of tensors."""

    name = "timm"
    title = "any timm model"
    layouts = ("timm",)
    ignorable = (r".*\.num_batches_tracked",)
    # Tables that timm computes itself, once stored by older versions.
    unused = (r".*\.relative_position_index", r".*\.attn_mask")
    exact = True
    reads = ("timm_name", "class_names")

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        return "timm" if options.timm_name is not None or options.family == self.name else None

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        name = _checked_name(options.timm_name)
        registered = _registered_cfg(name)
        stated = hf_config(checkpoint).get("pretrained_cfg")
        cfg = {**registered, **stated} if isinstance(stated, Mapping) else registered
        num_classes = _num_classes(checkpoint, cfg.get("classifier"))
        recipe = _recipe(name, cfg)
        size = options.size_hw or recipe.size_hw
        return ModelSpec(
            family=self.name,
            variant=name,
            layout=layout,
            task="classify" if num_classes else "embed",
            config={
                "timm_name": name,
                "num_classes": num_classes,
                "img_size": size if cfg.get("fixed_input_size") and size != recipe.size_hw else None,
            },
            input_hw=size,
            recipe=recipe.with_size(size),
            post=PostRecipe("classify" if num_classes else "embed"),
            outputs=(OutputSpec("logits", "logits", 1e-3) if num_classes else OutputSpec("cls", "embedding", 1e-4),),
            num_classes=num_classes or None,
            class_names=_class_names(options, num_classes),
            choices=() if isinstance(stated, Mapping) else _tag_choice(name, recipe),
            fp32_islands=("layer_norm", "attention_scores", "softmax"),
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Tensor]:
        return dict(checkpoint.tensors)

    def build(self, spec: ModelSpec) -> nn.Module:
        config = spec.config
        # `exportable` makes timm write attention out, with the query scaled first
        options: dict[str, Any] = {"num_classes": config["num_classes"], "exportable": True}
        if config["img_size"] is not None:
            options["img_size"] = tuple(config["img_size"])
        try:
            model: nn.Module = _timm().create_model(config["timm_name"], pretrained=False, **options)
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            height, width = spec.input_hw
            raise UsageError(
                f"timm cannot build {config['timm_name']} for inputs of {height}x{width}: {error}.",
                hint="Leave out --size to take the model's own input size.",
            ) from error
        return model.eval()

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        return _OneOutput(module).eval()


class _OneOutput(nn.Module):
    """Images (N, 3, H, W) to (logits,) or (pooled features,), each (N, D)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor]:
        output = self.model(images)
        if not isinstance(output, torch.Tensor) or output.ndim != 2:
            raise ExportError(f"Expected one output (N, D) of the timm model, got {type(output).__name__}.")
        return (output,)


def _timm() -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise MissingDependencyError("timm", needed_for="--timm-name", extra="export") from error
    module: ModuleType = timm
    return module


def _checked_name(name: str | None) -> str:
    """A registered architecture, perhaps with a tag. Addresses such as hf-hub:… are refused: they would download."""
    if name is None:
        raise UsageError("--family timm needs the model's name.", hint="Pass --timm-name NAME, say resnet50.a1_in1k.")
    timm = _timm()
    architecture = name.partition(".")[0]
    if ":" not in name and timm.is_model(architecture):
        return name
    close = difflib.get_close_matches(architecture, timm.list_models(), n=5)
    hint = f"Close names: {', '.join(close)}." if close else "timm.list_models() lists all names."
    raise UsageError(f"timm {timm.__version__} has no model '{name}'.", hint=hint)


def _registered_cfg(name: str) -> dict[str, Any]:
    """timm's description of a model: input size, normalization, classifier; the default tag's if `name` has none."""
    try:
        cfg = _timm().get_pretrained_cfg(name)
    except RuntimeError as error:
        tags = ", ".join(_tags(name))
        raise UsageError(f"timm: {error}", hint=f"Known tags: {tags}." if tags else None) from error
    return {} if cfg is None else dict(cfg.to_dict())


def _tags(name: str) -> list[str]:
    architecture = name.partition(".")[0]
    known = _timm().list_pretrained(f"{architecture}.*")
    return [entry.partition(".")[2] for entry in known]


def _num_classes(checkpoint: Checkpoint, classifier: str | tuple[str, ...] | list[str] | None) -> int:
    """Rows of the first classifier that the model is known to have, 0 where the checkpoint has none."""
    names = [classifier] if isinstance(classifier, str) else list(classifier or ())
    weights = [checkpoint.tensors[f"{name}.weight"] for name in names if f"{name}.weight" in checkpoint.tensors]
    return int(weights[0].shape[0]) if weights else 0


def _recipe(name: str, cfg: Mapping[str, Any]) -> Recipe:
    """timm's evaluation transform, exactly, or UsageError where a recipe cannot say it."""
    from timm.data import resolve_data_config

    data = resolve_data_config(pretrained_cfg=dict(cfg))
    channels, height, width = data["input_size"]
    mode, fraction, interpolation = data["crop_mode"], float(data["crop_pct"]), data["interpolation"]
    obstacles = {
        f"{channels} input channels (only 3 are supported)": channels != 3,
        f"interpolation '{interpolation}'": interpolation not in _INTERPOLATIONS,
        f"crop mode '{mode}'": mode not in ("center", "squash"),
        f"crop mode 'squash' with crop_pct {fraction}": mode == "squash" and fraction != 1.0,
        f"crop_pct {fraction}": not 0 < fraction <= 1,
    }
    if found := [text for text, present in obstacles.items() if present]:
        raise UsageError(
            f"The preprocessing of timm's {name} cannot be reproduced: {', '.join(found)}.",
            hint="Another tag of the model may have a plain one.",
        )
    return Recipe(
        (height, width),
        resize="stretch" if mode == "squash" else "center_crop",
        interpolation=_INTERPOLATIONS[interpolation],
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
        crop_fraction=fraction,
    )


def _tag_choice(name: str, recipe: Recipe) -> tuple[Choice, ...]:
    """Without a tag the default one's preprocessing is taken; say so where another tag's differs."""
    architecture, _, tag = name.partition(".")
    tags = [] if tag else _tags(name)
    if len({_comparable(f"{architecture}.{other}") for other in tags}) < 2:
        return ()
    reason = "the tags of this architecture were trained with different preprocessing"
    default = str(_registered_cfg(name).get("tag", ""))
    choice = Choice("timm tag", default, f"--timm-name {architecture}.TAG", tuple(tags), reason, assumed=True)
    return (choice,)


def _comparable(name: str) -> str:
    try:
        return _recipe(name, _registered_cfg(name)).digest
    except UsageError as error:
        return error.message


def _class_names(options: FamilyOptions, num_classes: int) -> tuple[str, ...] | None:
    names = options.class_names
    if names is not None and len(names) != num_classes:
        raise UsageError(f"{len(names)} labels were given, but the model has {num_classes} classes.")
    return names
