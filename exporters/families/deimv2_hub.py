"""The `config.json` of a DEIMv2 model folder: sections of the official YAML files, as the hub models carry them.

What a section says and the tensors show must agree; what only the section says is taken from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.deimv2_config import ACTIVATION, DEIMv2Config

DECODER, HYBRID, LITE, STA = "DEIMTransformer", "HybridEncoder", "LiteEncoder", "DINOv3STAs"
_MAX_QUERIES = 100_000


@dataclass(frozen=True)
class HubFacts:
    """What the tensors cannot tell; None where config.json does not say it either."""

    queries: int | None = None
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
    queries = decoder.get("num_queries")
    if queries is not None and (type(queries) is not int or not 1 <= queries <= _MAX_QUERIES):
        raise CheckpointError(f"config.json: {DECODER}.num_queries is {queries!r}; expected a number from 1.")
    if after is not None and not 0 <= after[0] < after[1] < after[2]:
        raise CheckpointError(
            f"config.json: {STA}.interaction_indexes is {list(after)}; expected three rising numbers."
        )
    return HubFacts(
        queries,
        (size[0], size[1]) if size else None,
        (after[0], after[1], after[2]) if after else None,
    )


def check_sections(checkpoint: Checkpoint, config: DEIMv2Config, trained_hw: tuple[int, int] | None) -> None:
    """Raises CheckpointError where config.json and the tensors contradict, or where it asks for what vtk has not."""
    shown = {**_shown_by_decoder(config, trained_hw), **_shown_by_rest(config)}
    for (section, key), value in shown.items():
        stated = _section(checkpoint, section).get(key)
        if stated is not None and stated not in value:
            raise CheckpointError(
                f"config.json and the tensors of {checkpoint.path.name} contradict each other: {section}.{key} is "
                f"{stated!r}, expected {' or '.join(map(repr, value))}.",
                hint="Is this the config.json of these weights? Without it, vtk infers everything from the tensors.",
            )


def _shown_by_decoder(
    config: DEIMv2Config, trained_hw: tuple[int, int] | None
) -> dict[tuple[str, str], tuple[object, ...]]:
    """Values that each key may have: what the tensors show, and the only ones that this implementation knows."""
    alike = config.points[:1] if len(set(config.points)) == 1 else ()
    facts: dict[str, tuple[object, ...]] = {
        "hidden_dim": (config.dim,),
        "num_layers": (config.layers,),
        "num_levels": (config.levels,),
        "num_points": (list(config.points), *alike),
        "nhead": (config.heads,),
        "num_classes": (config.classes,),
        "dim_feedforward": (config.decoder_ffn, config.decoder_ffn + 1),
        "use_gateway": (config.gateway,),
        "reg_max": (config.reg_max,),
        "reg_scale": (config.reg_scale,),
        "eval_idx": (-1, config.layers - 1),
        "layer_scale": (1,),
        "cross_attn_method": ("default",),
        "query_select_method": ("default",),
        "learn_query_content": (False,),
        "activation": (ACTIVATION,),
        "mlp_act": (ACTIVATION,),
    }
    if trained_hw is not None:
        facts["eval_spatial_size"] = (list(trained_hw),)
    return {(DECODER, key): values for key, values in facts.items()}


def _shown_by_rest(config: DEIMv2Config) -> dict[tuple[str, str], tuple[object, ...]]:
    facts: dict[tuple[str, str], tuple[object, ...]] = {
        (HYBRID, "hidden_dim"): (config.hidden,),
        (HYBRID, "dim_feedforward"): (config.encoder_ffn,),
        (HYBRID, "nhead"): (config.encoder_heads,),
        (HYBRID, "num_encoder_layers"): (config.encoder_layers,),
        (HYBRID, "version"): ("deim" if config.encoder == "sum" else "dfine",),
        (HYBRID, "csp_type"): ("csp2",),
        (HYBRID, "fuse_op"): ("sum",),
        (HYBRID, "enc_act"): ("gelu",),
        (HYBRID, "act"): (ACTIVATION,),
        (LITE, "hidden_dim"): (config.hidden,),
        (LITE, "act"): (ACTIVATION,),
    }
    if config.sta is not None:
        facts[STA, "conv_inplane"] = (config.sta.planes,)
    return facts


def _config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    config = checkpoint.metadata.get("config")
    return config if isinstance(config, Mapping) else {}


def _section(checkpoint: Checkpoint, name: str) -> Mapping[str, Any]:
    section = _config(checkpoint).get(name, {})
    if not isinstance(section, Mapping):
        raise CheckpointError(f"config.json: {name} is {section!r}; expected a section of the official config.")
    return section


def _integers(section: Mapping[str, Any], name: str, key: str, count: int) -> list[int] | None:
    value = section.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count or not all(type(item) is int for item in value):
        raise CheckpointError(f"config.json: {name}.{key} is {value!r}; expected {count} numbers.")
    return value
