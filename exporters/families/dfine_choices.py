"""ReLU or SiLU: the one thing that tells D-FINE from DEIM, and that their checkpoints do not say."""

from __future__ import annotations

from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.dfine_config import DFineConfig
from vtk.exporters.family import Choice, FamilyOptions

ACTIVATIONS = {"dfine": "relu", "deim": "silu"}


def reading(checkpoint: Checkpoint, config: DFineConfig, options: FamilyOptions) -> Choice:
    """ReLU or SiLU leaves no trace in names and shapes; only L and X differ, in the backbone's norm counters."""
    value, reason, assumed = _evidence(checkpoint, config, options)
    return Choice("activation family", value, "--family", tuple(ACTIVATIONS), reason, assumed)


def _evidence(checkpoint: Checkpoint, config: DFineConfig, options: FamilyOptions) -> tuple[str, str, bool]:
    if options.family in ACTIVATIONS:
        return options.family, "as asked", False
    if config.variant in ("L", "X") and config.frozen_bn is not None:
        if config.frozen_bn:
            return "dfine", "the backbone norms are frozen, as in the official D-FINE L and X configs", False
        return "deim", "the backbone norms have step counters, as in the official DEIM L and X configs", False
    same = "D-FINE (ReLU) and DEIM (SiLU) checkpoints have the same names and shapes, and the other gives wrong boxes"
    file_name = checkpoint.path.name.lower()
    if "deim" in file_name:
        return "deim", f"{same}; the file name says DEIM", True
    return "dfine", f"{same}; nothing says DEIM", True
