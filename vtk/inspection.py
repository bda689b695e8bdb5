"""Checkpoints and bundles, inspected through one door."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtk.bundle import Bundle, is_bundle, manifest_to_json, read_bundle
from vtk.errors import BundleError, UsageError
from vtk.exporters.family import Choice, FamilyOptions
from vtk.requirements import require

if TYPE_CHECKING:
    from vtk.exporters.inspection import Inspection


@dataclass(frozen=True)
class BundleInspection:
    """A whole bundle whose files are those that its manifest names."""

    bundle: Bundle

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the checkpoint could not tell when the bundle was made. Raises BundleError for ill-formed ones."""
        try:
            return tuple(Choice(**choice) for choice in self.bundle.manifest.choices)
        except TypeError as error:
            raise BundleError(f"The choices recorded in {self.bundle.root} are not usable: {error}.") from error

    def to_json(self) -> dict[str, Any]:
        """The manifest, with the kind and the path in front."""
        return {"kind": "bundle", "path": str(self.bundle.root), **manifest_to_json(self.bundle.manifest)}


def inspect_path(path: Path, options: FamilyOptions, weights: str | None) -> Inspection | BundleInspection:
    """What `path` holds. Bundles need no torch.

    Raises UsageError for options given with a bundle, which has everything decided, BundleError, and the errors of
    `inspect_checkpoint`.
    """
    if is_bundle(path):
        if weights is not None or options != FamilyOptions():
            raise UsageError(
                f"{path} is a bundle, in which everything is decided.", hint="Leave out the model options."
            )
        return BundleInspection(read_bundle(path))
    require("torch", "safetensors", needed_for="inspecting a checkpoint", extra="export")
    from vtk.exporters.inspection import inspect_checkpoint

    return inspect_checkpoint(path, options, weights)
