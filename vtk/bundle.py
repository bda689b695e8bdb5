"""A bundle: the folder that holds everything a verified model needs to run, and proves what it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Label:
    """Class index i of the model is `labels[i]`; `category_id` is what COCO files call it."""

    category_id: int
    name: str


@dataclass(frozen=True)
class Artifact:
    """One graph or engine file. `precision` is as built, `target` is what it can run on ("any" for ONNX)."""

    backend: str
    precision: str
    batch: int
    file: str
    sha256: str
    builder: Mapping[str, str]
    target: str


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`, written last and atomically. See DESIGN: a folder without it is not a bundle."""

    family: str
    variant: str
    layout: str
    task: Literal["detect", "embed", "classify"]
    config: Mapping[str, Any]
    source: Mapping[str, Any]
    recipe: Recipe
    post: PostRecipe
    labels: tuple[Label, ...]
    outputs: tuple[Mapping[str, Any], ...]
    choices: tuple[Mapping[str, Any], ...]
    artifacts: tuple[Artifact, ...]
    verify: Mapping[str, Any]
    vtk_version: str
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Bundle:
    """A folder with a valid manifest."""

    root: Path
    manifest: Manifest
