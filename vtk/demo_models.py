"""The models of the demo, made from what is on this machine: nothing is downloaded."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vtk.bundle import is_bundle
from vtk.demo_weights import dinov2_small, smollm2, toy_detector

Tell = Callable[[str], None]


@dataclass(frozen=True)
class DemoModel:
    """make: writes the model to a place in a model folder; is_there: whether it lies there already."""

    name: str
    file: str
    what: str
    make: Callable[[Path, Tell], None]
    is_there: Callable[[Path], bool]


def demo_models() -> tuple[DemoModel, ...]:
    """In the order in which they are made."""
    return (
        DemoModel("toy-deim", "toy-deim", "a detector of handwritten digits", _make_toy_detector, is_bundle),
        DemoModel("dinov2-s", "dinov2-s", "DINOv2-S/14, picture embeddings", _make_dinov2, is_bundle),
        DemoModel("smollm2", "smollm2.gguf", "SmolLM2-135M-Instruct, a language model", _make_smollm2, Path.is_file),
    )


def _make_toy_detector(place: Path, tell: Tell) -> None:
    checkpoint, labels = toy_detector()
    _export(checkpoint, place, tell, family="deim", class_names=tuple(json.loads(labels.read_text())))


def _make_dinov2(place: Path, tell: Tell) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _export(dinov2_small(Path(folder) / "dinov2_s.safetensors"), place, tell)


def _make_smollm2(place: Path, tell: Tell) -> None:
    """A hard link where the file system allows it: it outlives the package, and takes no room."""
    source = smollm2()
    temporary = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        try:
            os.link(source.resolve(), temporary)
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)


def _export(
    checkpoint: Path, place: Path, tell: Tell, *, family: str | None = None, class_names: tuple[str, ...] | None = None
) -> None:
    from vtk.exporters.family import FamilyOptions
    from vtk.exporting import ExportListener, ExportSettings, export_bundle
    from vtk.requirements import require_export

    require_export()

    class Stages(ExportListener):
        def stage(self, title: str) -> None:
            tell(title)

    options = FamilyOptions(family=family, class_names=class_names)
    export_bundle(checkpoint, place, options, ExportSettings(), Stages())
