"""The `config.json` of a DEIMv2 model folder: sections of the official YAML files, as the hub models carry them.

What a section says and the tensors show must agree; what only the section says is taken from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.deimv2_config import ACTIVATION, DEIMv2Config
from vtk.exporters.families.detector_infer import ENCODER_HEADS

DECODER, HYBRID, LITE = "DEIMTransformer", "HybridEncoder", "LiteEncoder"
STA, HGNET, POST = "DINOv3STAs", "HGNetv2", "PostProcessor"
_MAX_COUNT = 100_000

# Values that the tensors may agree with: by section and key, the first being what official files hold.
_Shown: TypeAlias = Mapping[tuple[str, str], tuple[object, ...]]

# Official options that leave no trace in the tensors, each with the one value that all official configs have.
_ONLY: Mapping[tuple[str, str], object] = {
    (DECODER, "layer_scale"): 1,
    (DECODER, "cross_attn_method"): "default",
    (DECODER, "query_select_method"): "default",
    (DECODER, "learn_query_content"): False,
    (DECODER, "activation"): ACTIVATION,
    (DECODER, "mlp_act"): ACTIVATION,
    (HYBRID, "nhead"): ENCODER_HEADS,
    (HYBRID, "csp_type"): "csp2",
    (HYBRID, "fuse_op"): "sum",
    (HYBRID, "enc_act"): "gelu",
    (HYBRID, "act"): ACTIVATION,
    (LITE, "act"): ACTIVATION,
    (LITE, "csp_type"): "csp2",
    (HGNET, "act"): "relu",
}


@dataclass(frozen=True)
class HubFacts:
    """What the tensors cannot tell; None where config.json does not say it either."""

    queries: int | None = None
    max_detections: int | None = None
    input_hw: tuple[int, int] | None = None
    after: tuple[int, int, int] | None = None


def has_sections(checkpoint: Checkpoint) -> bool:
    """Whether the file lay beside a config.json of this kind."""
    return isinstance(_config(checkpoint).get(DECODER), Mapping)


def read_facts(checkpoint: Checkpoint) -> HubFacts:
    """Raises CheckpointError where something else than the expected kind of value stands there."""
    decoder, sta = _section(checkpoint, DECODER), _section(checkpoint, STA)
    size = _integers(decoder, DECODER, "eval_spatial_size", 2)
    after = _integers(sta, STA, "interaction_indexes", 3)
    if after is not None and not 0 <= after[0] < after[1] < after[2]:
        raise CheckpointError(
            f"config.json: {STA}.interaction_indexes is {list(after)}; expected three rising numbers."
        )
    return HubFacts(
        queries=_count(decoder, DECODER, "num_queries"),
        max_detections=_count(_section(checkpoint, POST), POST, "num_top_queries"),
        input_hw=(size[0], size[1]) if size else None,
        after=(after[0], after[1], after[2]) if after else None,
    )


def check_sections(checkpoint: Checkpoint, config: DEIMv2Config, trained_hw: tuple[int, int] | None) -> None:
    """Raises CheckpointError where config.json and the tensors contradict, or where it asks for what vtk has not."""
    for (section, key), values in {**_shown_by_decoder(config, trained_hw), **_shown_by_rest(config)}.items():
        stated = _section(checkpoint, section).get(key)
        if stated is not None and stated not in values:
            raise CheckpointError(
                f"config.json and the tensors of {checkpoint.path.name} contradict each other: {section}.{key} is "
                f"{stated!r}, expected {values[0]!r}.",
                hint="Is this the config.json of these weights? Without it, vtk infers everything from the tensors.",
            )
    for (section, key), value in _ONLY.items():
        stated = _section(checkpoint, section).get(key)
        if stated is not None and stated != value:
            raise CheckpointError(f"config.json: {section}.{key} is {stated!r}; vtk knows only {value!r} there.")


def _shown_by_decoder(config: DEIMv2Config, trained_hw: tuple[int, int] | None) -> _Shown:
    alike = config.points[:1] if len(set(config.points)) == 1 else ()
    facts: dict[str, tuple[object, ...]] = {
        "hidden_dim": (config.dim,),
        "num_layers": (config.layers,),
        "num_levels": (config.levels,),
        "num_points": (list(config.points), *alike),
        "nhead": (config.heads,),
        "num_classes": (config.classes,),
        "dim_feedforward": (config.decoder_ffn, config.decoder_ffn + 1),  # half of it, rounded down, is the width
        "use_gateway": (config.gateway,),
        "reg_max": (config.reg_max,),
        "reg_scale": (config.reg_scale,),
        "eval_idx": (-1, config.layers - 1),
    }
    if trained_hw is not None:
        facts["eval_spatial_size"] = (list(trained_hw),)
    return {(DECODER, key): values for key, values in facts.items()}


def _shown_by_rest(config: DEIMv2Config) -> _Shown:
    facts: dict[tuple[str, str], tuple[object, ...]] = {
        (HYBRID, "hidden_dim"): (config.hidden,),
        (HYBRID, "dim_feedforward"): (config.encoder_ffn,),
        (HYBRID, "num_encoder_layers"): (config.encoder_layers,),
        (HYBRID, "version"): ("deim" if config.encoder == "sum" else "dfine",),
        (LITE, "hidden_dim"): (config.hidden,),
    }
    if config.sta is not None:
        facts[STA, "conv_inplane"] = (config.sta.planes,)
    if config.hgnet is not None and config.backbone != "custom":
        facts[HGNET, "name"] = (config.backbone,)
    return facts


def _config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    config = checkpoint.metadata.get("config")
    return config if isinstance(config, Mapping) else {}


def _section(checkpoint: Checkpoint, name: str) -> Mapping[str, Any]:
    section = _config(checkpoint).get(name, {})
    if not isinstance(section, Mapping):
        raise CheckpointError(f"config.json: {name} is {section!r}; expected a section of the official config.")
    return section


def _count(section: Mapping[str, Any], name: str, key: str) -> int | None:
    value = section.get(key)
    if value is not None and (type(value) is not int or not 1 <= value <= _MAX_COUNT):
        raise CheckpointError(f"config.json: {name}.{key} is {value!r}; expected a number from 1.")
    return value


def _integers(section: Mapping[str, Any], name: str, key: str, count: int) -> list[int] | None:
    value = section.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count or not all(type(item) is int for item in value):
        raise CheckpointError(f"config.json: {name}.{key} is {value!r}; expected {count} numbers.")
    return value
