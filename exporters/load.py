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
from vtk.exporters.registry import recognize

MIN_MATCHED = 0.99


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
    """A checkpoint as a runnable reference: `wrapper(images)` gives `spec.outputs` in order."""

    family: Family
    spec: ModelSpec
    wrapper: nn.Module
    report: LoadReport
    checkpoint: Checkpoint


def load_model(checkpoint: Checkpoint, options: FamilyOptions) -> LoadedModel:
    """Recognize, build and fill. Weights are cast to float32, the precision of the reference.

    Raises the errors of `recognize` and `Family.infer`, and WeightsMismatchError when a parameter is missing, a shape
    differs, or less than 99 % of the checkpoint's elements found a place.
    """
    family, layout = recognize(checkpoint, options)
    spec = family.infer(checkpoint, layout, options)
    module = family.build(spec)
    report = fill(module, family.remap(checkpoint, spec), family, source=checkpoint.path.name)
    wrapper = family.wrap(module, spec).eval()
    wrapper.requires_grad_(False)
    return LoadedModel(family, spec, wrapper, report, checkpoint)


def fill(module: nn.Module, tensors: Mapping[str, torch.Tensor], family: Family, *, source: str) -> LoadReport:
    """Copy `tensors` into `module`, refusing anything partial but the family's `ignorable` and `unused`."""
    own = module.state_dict()
    floats = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
    fits = {key: value for key, value in floats.items() if key in own and own[key].shape == value.shape}
    wrong_shape = [
        f"{key} (expected {tuple(own[key].shape)}, came {tuple(value.shape)})"
        for key, value in floats.items()
        if key in own and key not in fits
    ]
    missing = sorted(key for key in own if key not in floats and not _any_match(family.ignorable, key))
    unexpected = sorted(key for key in floats if key not in own and not _any_match(family.unused, key))
    matched = sum(fits[key].numel() for key in fits)
    total = matched + sum(floats[key].numel() for key in unexpected)
    report = LoadReport(matched, total, tuple(missing), tuple(unexpected))
    if missing or wrong_shape or report.fraction < MIN_MATCHED or (family.exact and unexpected):
        raise WeightsMismatchError(_mismatch_text(family, source, report, wrong_shape))
    module.load_state_dict(fits, strict=False)
    return report


def _any_match(patterns: tuple[str, ...], key: str) -> bool:
    return any(re.fullmatch(pattern, key) for pattern in patterns)


def _mismatch_text(family: Family, source: str, report: LoadReport, wrong_shape: list[str]) -> str:
    lists = [
        f"{title} ({len(names)}): {', '.join(names[:20])}{', …' if len(names) > 20 else ''}"
        for title, names in (
            ("missing from the checkpoint", report.missing),
            ("not used by the model", report.unexpected),
            ("wrong shape", wrong_shape),
        )
        if names
    ]
    return (
        f"{source} was recognized as {family.title}, but only {report.fraction:.1%} of its parameters fit. "
        + "; ".join(lists)
        + "."
    )
