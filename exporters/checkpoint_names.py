"""Which set of weights in a file to take, and what its tensors are called without training wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from vtk.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# Best first: the averaged weights are the ones that papers report and official exporters take.
_AVERAGED = ("ema.module", "ema", "model_ema", "ema_model", "state_dict_ema")
_PARTS = (*_AVERAGED, "model", "state_dict", "model_state_dict", "teacher")
FLAT = "flat"

# torch inserts these anywhere in a name (compile, FSDP, activation checkpointing); no model uses them itself.
_INSERTED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Stripped only where every name has them. `model.` before a number is the layer list of a YOLO model, not a wrapper.
_LEADING = ("module.", "ema.module.", "model.", "net.", "backbone.")

MAX_TENSORS = 100_000
MAX_NAME_LENGTH = 1_000
# Views of one stored value (`expand`) are legal; a small file that unfolds to terabytes is not.
MAX_EXPANSION = 8
_EXPANSION_FLOOR = 1 << 24


def find_parts(tree: Mapping[object, object], source: str) -> dict[str, Mapping[object, object]]:
    """Every set of weights in a loaded file, best first."""
    parts = {name: part for name in _PARTS if (part := _descend(tree, name)) is not None}
    if not parts and _holds_tensors(tree):
        parts[FLAT] = tree
    if not parts:
        keys = ", ".join(str(key)[:40] for key in list(tree)[:8])
        raise CheckpointError(
            f"{source} holds no tensors under names that vtk knows; its top-level keys are: {keys or '(none)'}.",
            hint=f"Expected a flat state dict, or one under {', '.join(_PARTS)}.",
        )
    return parts


def choose_part(parts: Mapping[str, object], asked: str | None, source: str) -> str:
    """The part to read: the best one, or what `--weights` asks for by full or first name (`ema` for `ema.module`)."""
    if asked is None:
        return next(iter(parts))
    for name in parts:
        if asked in (name, name.partition(".")[0]):
            return name
    raise UsageError(f"{source} has no weights '{asked}'.", hint=f"Available for --weights: {', '.join(parts)}.")


def split_tensors(
    part: Mapping[object, object], source: str, num_bytes: int
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """Named dense tensors, and the names of what is not one; refuses counts and sizes that no model has."""
    import torch

    tensors = {key: value for key, value in part.items() if isinstance(key, str) and isinstance(value, torch.Tensor)}
    ignored = tuple(str(key)[:MAX_NAME_LENGTH] for key in part if key not in tensors)
    if len(part) > MAX_TENSORS:
        raise CheckpointError(f"{source} holds {len(part)} entries; vtk reads up to {MAX_TENSORS}.")
    for name, tensor in tensors.items():
        if len(name) > MAX_NAME_LENGTH:
            raise CheckpointError(f"{source}: a tensor's name is {len(name)} characters long: {name[:60]}…")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise CheckpointError(f"{source}: tensor {name} is not stored as a plain dense tensor.")
    if not tensors:
        raise CheckpointError(f"{source} holds tensors, but none under a name: its keys are {', '.join(ignored[:5])}.")
    unfolded = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if unfolded > MAX_EXPANSION * num_bytes + _EXPANSION_FLOOR:
        raise CheckpointError(f"{source}: its tensors claim {unfolded} bytes, but the file has only {num_bytes}.")
    return tensors, ignored


def strip_wrappers(tensors: Mapping[str, T], source: str) -> tuple[dict[str, T], tuple[str, ...]]:
    """Tensors under their model's own names, and the wrapper prefixes removed, in the order of removal."""
    names = list(tensors)
    stripped: list[str] = []
    for segment in _INSERTED:
        shorter = [".".join(piece for piece in name.split(".") if piece != segment) for name in names]
        if shorter != names:
            stripped.append(f"{segment}.")
            names = shorter
    while (prefix := _shared_prefix(names)) is not None:
        stripped.append(prefix)
        names = [name.removeprefix(prefix) for name in names]
    renamed = dict(zip(names, tensors.values(), strict=True))
    if len(renamed) < len(tensors):
        twice = next(name for name in renamed if names.count(name) > 1)
        raise CheckpointError(f"{source}: two tensors are both called {twice} once {', '.join(stripped)} is removed.")
    return renamed, tuple(stripped)


def _shared_prefix(names: list[str]) -> str | None:
    for prefix in _LEADING:
        rests = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        if len(rests) == len(names) and all(rest and not rest[0].isdigit() for rest in rests):
            return prefix
    return None


def _descend(tree: Mapping[object, object], name: str) -> Mapping[object, object] | None:
    node: object = tree
    for step in name.split("."):
        node = node.get(step) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) and _holds_tensors(node) else None


def _holds_tensors(node: Mapping[object, object]) -> bool:
    import torch

    return any(isinstance(value, torch.Tensor) for value in node.values())
