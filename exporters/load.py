"""From a checkpoint to a module ready to export, with every parameter accounted for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from vtk.errors import WeightsMismatchError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import Family, FamilyOptions, ModelSpec
from vtk.exporters.registry import identify

MIN_MATCHED = 0.99
_SHOWN = 20
# BatchNorm counts its training steps; inference never reads the count, and old or trimmed files lack it.
_BATCH_COUNTER = r"(.*\.)?num_batches_tracked"


@dataclass(frozen=True)
class LoadReport:
    """How the checkpoint filled the model. Counts are parameters (elements), names are sorted."""

    matched: int
    total: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def fraction(self) -> float:
        return self.matched / self.total if self.total else 0.0


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint as a runnable reference: `wrapper(images)` gives `spec.outputs` in order.

    With `spec.parts`, `wrapper` is an nn.ModuleDict of the parts, and `part` finds one.
    """

    family: Family
    spec: ModelSpec
    wrapper: nn.Module
    report: LoadReport
    checkpoint: Checkpoint

    def part(self, name: str) -> nn.Module:
        """The wrapper of one of `spec.parts`."""
        assert isinstance(self.wrapper, nn.ModuleDict)
        return self.wrapper[name]


def load_model(checkpoint: Checkpoint, options: FamilyOptions) -> LoadedModel:
    """Recognize, build and fill. Floating tensors are cast to float32, the precision of the reference.

    Raises the errors of `identify`, and WeightsMismatchError when a parameter is missing, a shape differs, or less than
    99 % of the checkpoint's elements found a place (for an `exact` family, any one did not).
    """
    family, spec = identify(checkpoint, options)
    with torch.device("meta" if family.builds_on_meta else "cpu"):
        module = family.build(spec)
    report = fill(module, family.remap(checkpoint, spec), family, source=checkpoint.path.name)
    wrapper = family.wrap(module, spec).eval()
    wrapper.requires_grad_(False)
    return LoadedModel(family, spec, wrapper, report, checkpoint)


def fill(module: nn.Module, tensors: Mapping[str, torch.Tensor], family: Family, *, source: str) -> LoadReport:
    """Copy `tensors` into `module`, refusing anything partial but the family's `ignorable` buffers and `unused`."""
    own = module.state_dict()
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    buffers_to_spare = (*family.ignorable, _BATCH_COUNTER)
    missing = sorted(
        key for key in own if key not in tensors and (key in parameters or not _any_match(buffers_to_spare, key))
    )
    unexpected = sorted(
        key for key in tensors if key not in own and not _any_match((*family.unused, _BATCH_COUNTER), key)
    )
    misfits = {key: text for key in own if key in tensors and (text := _misfit(key, tensors[key], own[key]))}
    fits = {key: tensors[key] for key in own if key in tensors and key not in misfits}
    matched = sum(value.numel() for value in fits.values())
    total = matched + sum(tensors[key].numel() for key in unexpected)
    report = LoadReport(matched, total, tuple(missing), tuple(unexpected))
    if missing or misfits or report.fraction < MIN_MATCHED or (family.exact and unexpected):
        raise WeightsMismatchError(_mismatch_text(family, source, report, tuple(misfits.values())))
    if family.builds_on_meta:
        module.load_state_dict({key: _as_float32(value) for key, value in fits.items()}, strict=False, assign=True)
    else:
        module.load_state_dict(fits, strict=False)  # copies, and so casts to the float32 of the module
    return report


def _as_float32(value: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it is float32 already."""
    return value.float() if value.is_floating_point() else value


def _misfit(key: str, value: torch.Tensor, place: torch.Tensor) -> str | None:
    if value.shape != place.shape:
        return f"{key} (expected {tuple(place.shape)}, came {tuple(value.shape)})"
    # One byte per weight is a quantized code that means nothing without its scale; a complex weight would be halved.
    if place.is_floating_point() and (value.element_size() == 1 or value.is_complex()):
        return f"{key} (expected floating point, came {str(value.dtype).removeprefix('torch.')})"
    return None


def _any_match(patterns: tuple[str, ...], key: str) -> bool:
    return any(re.fullmatch(pattern, key) for pattern in patterns)


def _mismatch_text(family: Family, source: str, report: LoadReport, misfits: tuple[str, ...]) -> str:
    lists = [
        f"{title} ({len(names)}): {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}"
        for title, names in (
            ("missing from the checkpoint", report.missing),
            ("not used by the model", report.unexpected),
            ("wrong shape or type", misfits),
        )
        if names
    ]
    return (
        f"{source} was recognized as {family.title}, but its tensors do not fill it ({report.fraction:.2%} fit). "
        + "; ".join(lists)
        + "."
    )
