"""What RF-DETR's tensors cannot tell, from what lies beside them: transformers' config.json or the trainer's args."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtk.errors import CheckpointError, UnknownFamilyError, in_short
from vtk.exporters.checkpoint import Checkpoint

_TRANSFORMERS_EPS = 1e-5
_MAX_NUMBER = 100_000
_CLASS_INDEX = re.compile("[0-9]{1,6}")
# Options of the official code with the one value that published detectors have.
_ONLY_ARGS: Mapping[str, object] = {
    "two_stage": True,
    "bbox_reparam": True,
    "lite_refpoint_refine": True,
    "layer_norm": True,
    "rms_norm": False,
    "decoder_norm": "LN",
    "segmentation_head": False,
}
_ONLY_CONFIG: Mapping[str, object] = {
    "activation_function": "silu",
    "decoder_activation_function": "relu",
    "num_feature_levels": 1,
}
_ONLY_BACKBONE: Mapping[str, object] = {
    "apply_layernorm": True,
    "use_swiglu_ffn": False,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
}


@dataclass(frozen=True)
class RFDetrFacts:
    """None where nothing says it. names: (index, name) of the classes that have one."""

    windows: int | None = None
    after: tuple[int, ...] | None = None
    vit_heads: int | None = None
    self_heads: int | None = None
    cross_heads: int | None = None
    side: int | None = None
    projector_eps: float | None = None
    skip_border: bool = False
    names: tuple[tuple[int, str], ...] = ()
    source: str | None = None


def read_facts(checkpoint: Checkpoint, classes: int) -> RFDetrFacts:
    """classes: outputs of the class head. Raises CheckpointError for a value of another kind than expected, and
    UnknownFamilyError for an option that vtk does not have."""
    config, args = checkpoint.metadata.get("config"), checkpoint.metadata.get("args")
    if isinstance(config, Mapping) and config.get("model_type") == "rf_detr":
        return _from_config(config)
    return _from_args(args, classes) if isinstance(args, Mapping) else RFDetrFacts()


def _from_config(config: Mapping[str, Any]) -> RFDetrFacts:
    backbone = config.get("backbone_config")
    if not isinstance(backbone, Mapping):
        raise CheckpointError("config.json: backbone_config is missing; expected a section.")
    _refuse_others(config, _ONLY_CONFIG, "config.json")
    _refuse_others(backbone, _ONLY_BACKBONE, "config.json, backbone_config")
    eps = config.get("layer_norm_eps", _TRANSFORMERS_EPS)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise CheckpointError(f"config.json: layer_norm_eps is {in_short(repr(eps))}; expected a small number.")
    return RFDetrFacts(
        windows=_number(backbone, "num_windows"),
        after=_numbers(backbone, "out_indices"),
        vit_heads=_number(backbone, "num_attention_heads"),
        self_heads=_number(config, "decoder_self_attention_heads"),
        cross_heads=_number(config, "decoder_cross_attention_heads"),
        projector_eps=eps,
        skip_border=True,
        names=_config_names(config.get("id2label")),
        source="config.json",
    )


def _from_args(args: Mapping[str, Any], classes: int) -> RFDetrFacts:
    _refuse_others(args, _ONLY_ARGS, "the trainer's args")
    return RFDetrFacts(
        windows=_number(args, "num_windows"),
        after=_numbers(args, "out_feature_indexes"),
        self_heads=_number(args, "sa_nheads"),
        cross_heads=_number(args, "ca_nheads"),
        side=_number(args, "resolution"),
        names=_trained_names(args.get("class_names"), classes),
        source="the trainer's args",
    )


def _refuse_others(section: Mapping[str, Any], only: Mapping[str, object], source: str) -> None:
    for key, value in only.items():
        if key in section and section[key] != value:
            came = in_short(repr(section[key]))
            raise UnknownFamilyError(
                f"This RF-DETR has {key} = {came} ({source}); vtk exports those with {value!r}.",
                hint="No published detector has this option.",
            )


def _number(section: Mapping[str, Any], key: str) -> int | None:
    value = section.get(key)
    if value is not None and (type(value) is not int or not 1 <= value <= _MAX_NUMBER):
        raise CheckpointError(f"RF-DETR's {key} is {in_short(repr(value))}; expected a number from 1.")
    return value


def _numbers(section: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    values = section.get(key)
    if values is None:
        return None
    if not isinstance(values, (list, tuple)) or any(type(value) is not int for value in values):
        raise CheckpointError(f"RF-DETR's {key} is {in_short(repr(values))}; expected a list of numbers.")
    return tuple(values)


def _config_names(labels: object) -> tuple[tuple[int, str], ...]:
    """transformers writes LABEL_0, LABEL_1, … where nobody gave names."""
    if not isinstance(labels, Mapping):
        return ()
    named = {str(key): value for key, value in labels.items() if _is_name(value)}
    if all(value == f"LABEL_{key}" for key, value in named.items()):
        return ()
    return tuple((int(key), value) for key, value in named.items() if _CLASS_INDEX.fullmatch(key))


def _trained_names(names: object, classes: int) -> tuple[tuple[int, str], ...]:
    """Trained on a data set of COCO's format, class 0 is its root category, and the first name belongs to class 1."""
    if not isinstance(names, (list, tuple)) or not all(_is_name(name) for name in names):
        return ()
    first = classes - len(names)
    return tuple(enumerate(names, start=first)) if first in (0, 1) else ()


def _is_name(value: object) -> bool:
    """Result files hold a name per line."""
    return isinstance(value, str) and value.isprintable() and bool(value.strip())
