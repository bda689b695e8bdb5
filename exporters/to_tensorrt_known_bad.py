"""Versions of TensorRT that are known to build wrong engines, as a table: looked at before anything is built.

Collected from reports of users; each row names its thread. A row is about a release and a kind of model, never about
one checkpoint. What a row cannot know is whether a later patch has fixed it: `vtk verify` on the GPU decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from vtk.errors import BackendError
from vtk.exporters.to_tensorrt_api import TITLES, Kind, release_of

Remedy = Literal["none", "deform=gather", "deform=grid_sample", "attn=explicit", "attn=fused"]
Release = tuple[int, ...]


@dataclass(frozen=True)
class KnownBad:
    """Engines of models that match `names` (a full-match pattern), built by releases first <= r < before, are wrong.

    A model's names are its family and its variant: timm's DINOv3 is one by its variant.

    before: None where no fixed release is known. remedy: the form of the graph in which the fault does not show; with
    `none` the row refuses the build if `is_fatal`, else it warns. source: where it was reported.
    """

    names: str
    first: Release
    before: Release | None
    symptom: str
    advice: str
    source: str
    remedy: Remedy = "none"
    is_fatal: bool = False
    kinds: tuple[Kind, ...] = ("tensorrt",)

    def matches(self, kind: Kind, release: Release, names: Iterable[str]) -> bool:
        """Whether the row is about this library and a model of one of these names."""
        in_range = self.first <= release and (self.before is None or release < self.before)
        return kind in self.kinds and in_range and any(re.fullmatch(self.names, name) for name in names)


_DINOV3 = r".*dinov3.*|deimv2.*"
_DEFORMABLE = r"dfine|deim|deimv2.*|rt-?detr.*|rf-?detr.*|deformable.*"

TABLE = (
    KnownBad(
        _DINOV3,
        (10, 0),
        (10, 6),
        "engines of DINOv3 are wrong in every precision: float32 with cosine 0.018, half with NaN or a single class",
        "use TensorRT 10.6 or later for DEIMv2, 10.16 or later for DINOv3 itself",
        "NVIDIA/TensorRT #4742, #4723, #4558; DEIMv2 #60, #112",
        is_fatal=True,
    ),
    KnownBad(
        r".*dinov3.*",
        (10, 6),
        (10, 16),
        "outputs without sense were reported with 10.13",
        "use TensorRT 10.16 or later",
        "facebookresearch/dinov3, discussion of deployment",
    ),
    KnownBad(
        _DEFORMABLE,
        (10, 13),
        None,
        "deformable attention built on GridSample is miscompiled: boxes are lost or moved, equal rows differ",
        "vtk export --deform gather writes the sampling out",
        "NVIDIA/TensorRT #4813; lightly-train #917",
        remedy="deform=gather",
    ),
    KnownBad(
        _DEFORMABLE,
        (1, 0),
        None,
        "not reported for TensorRT-RTX, whose compiler is the same as that of the releases that miscompile GridSample",
        "vtk export --deform gather writes the sampling out",
        "NVIDIA/TensorRT #4813",
        remedy="deform=gather",
        kinds=("tensorrt_rtx",),
    ),
    KnownBad(
        r".*",
        (10, 7),
        (10, 8),
        "scaled_dot_product_attention is fused wrongly, in float32 too",
        "--attn explicit scales the query first and writes attention out",
        "NVIDIA/TensorRT #4333, #4328",
        remedy="attn=explicit",
    ),
)


def known_bad(kind: Kind, version: str, *names: str) -> tuple[KnownBad, ...]:
    """The rows about this library and a model of these names, in the order of the table."""
    release = release_of(version)
    return tuple(row for row in TABLE if row.matches(kind, release, names))


def check_known_bad(kind: Kind, version: str, names: tuple[str, ...], applied: Collection[Remedy]) -> list[str]:
    """Warnings about what is left once `applied` remedies are in the graph. Raises BackendError for a fatal row."""
    rows = [row for row in known_bad(kind, version, *names) if row.remedy not in applied]
    for row in rows:
        if row.is_fatal:
            raise BackendError(
                f"{TITLES[kind]} {version} is known to be wrong for {' '.join(names)}: {row.symptom} ({row.source}).",
                hint=f"{row.advice[0].upper()}{row.advice[1:]}.",
            )
    return [f"{TITLES[kind]} {version}, {' '.join(names)}: {row.symptom} ({row.source}); {row.advice}" for row in rows]
