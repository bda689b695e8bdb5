"""What a job is: its options, and all that decides its results, as the JSON data by which it is known again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from vtk.bundle import Bundle, Manifest
from vtk.inputs import Plan
from vtk.naming import utf8
from vtk.pipeline_model import Model, PipelineSettings
from vtk.segmenting.job_prompts import JobPrompts
from vtk.shards import Shard
from vtk.tiling import Tiling


class OpenModel(Model, Protocol):
    """A predictor: the pipeline's model with the bundle it was opened from and what really runs it."""

    bundle: Bundle
    batch_sizes: tuple[int, ...]
    backend: str
    device: str


@dataclass(frozen=True, kw_only=True)
class RunOptions(PipelineSettings):
    """formats: names that `check_formats` has passed. patches: store dense features too. coco_images: take image ids
    from this COCO file. overwrite: delete the job that is in the folder. shard: do only this part of the pictures.
    dedupe: pictures of equal bytes are computed once.
    tiling: how the model looks at large pictures, None for whole ones.
    prompts: what a promptable model is asked; None for one that finds its own classes.
    """

    formats: tuple[str, ...]
    patches: bool = False
    coco_images: Path | None = None
    overwrite: bool = False
    shard: Shard | None = None
    dedupe: bool = False
    tiling: Tiling | None = None
    prompts: JobPrompts | None = None


def request_of(
    model: OpenModel, options: RunOptions, inputs: Mapping[str, Any], part: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Everything that decides the results, as JSON data: what a job must share with the one it goes on with.

    inputs: what names the pictures. part: which of them are in this folder, None for all; shards of one job differ in
    nothing else.
    """
    return {
        **_identity(model.bundle.manifest),
        "backend": model.backend,
        "device": model.device,
        "formats": sorted(options.formats),
        "post": options.post.to_json(),
        "classes": None if options.class_filter is None else sorted(options.class_filter),
        "decode": asdict(options.decode),
        "patches": options.patches,
        "tiling": None if options.tiling is None else asdict(options.tiling),
        "coco_images": None if options.coco_images is None else utf8(str(options.coco_images)),
        "prompts": None if options.prompts is None else options.prompts.identity,
        "dedupe": options.dedupe,
        "inputs": inputs,
        "shard": part,
    }


def inputs_of(plan: Plan) -> dict[str, Any]:
    """The whole plan, whatever part of it is done here."""
    return {"root": utf8(plan.root), "pictures": len(plan.items), "digest": plan.digest}


def _identity(manifest: Manifest) -> dict[str, Any]:
    return {
        "task": manifest.task,
        "tensor_digest": manifest.source["tensor_digest"],
        "graphs": sorted(artifact.sha256 for artifact in manifest.artifacts),
        "recipe": manifest.recipe.digest,
        "labels": hashlib.sha256(repr(manifest.labels).encode(errors="backslashreplace")).hexdigest(),
    }


def notes_of(model: OpenModel, options: RunOptions) -> dict[str, Any]:
    """What is worth knowing about a job and does not decide its results; `labels` serve those who merge it."""
    manifest = model.bundle.manifest
    return {
        "bundle": utf8(str(model.bundle.root)),
        "family": manifest.family,
        "variant": manifest.variant,
        "batch": options.batch,
        "workers": options.workers,
        "labels": [asdict(label) for label in manifest.labels],
        "vtk_version": version("vtk-deploy"),
    }
