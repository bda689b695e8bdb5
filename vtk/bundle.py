"""A bundle: the folder that holds everything a verified model needs to run, and proves what it came from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from vtk.errors import BundleError
from vtk.exporters.checkpoint_hash import file_sha256 as file_sha256
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

SCHEMA_VERSION = 2
MANIFEST_NAME = "manifest.json"

Task = Literal["detect", "embed", "classify", "segment"]


@dataclass(frozen=True)
class Label:
    """Class index i of the model is `labels[i]`; `category_id` is what COCO files call it."""

    category_id: int
    name: str


@dataclass(frozen=True)
class Artifact:
    """One graph or engine file.

    backend: `onnx` for a graph that several engines open, else the engine it was built for. precision: as built.
    target: what it can run on ("any" for ONNX). file: path inside the bundle, with forward slashes. part: which graph
    of a model that is made of several (an image encoder, a text encoder, a decoder); `model` where there is one.
    """

    backend: str
    precision: str
    batch: int
    file: str
    sha256: str
    builder: Mapping[str, str]
    target: str
    part: str = "model"


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`, written last and atomically: a folder without it is not a bundle.

    source: name, sha256, tensor_digest, format, weights and parameter count of the checkpoint. outputs: name, kind and
    atol of each raw output. grid_hw: rows and columns of dense features, None where the model has none. lint: what
    engines are known to get wrong in these graphs. files: SHA-256
    of every other file that belongs to the bundle (external weights, golden data), by path. verify: the summary of the
    verification that this export passed.
    """

    family: str
    variant: str
    layout: str
    task: Task
    config: Mapping[str, Any]
    source: Mapping[str, Any]
    recipe: Recipe
    post: PostRecipe
    labels: tuple[Label, ...]
    outputs: tuple[Mapping[str, Any], ...]
    choices: tuple[Mapping[str, Any], ...]
    artifacts: tuple[Artifact, ...]
    files: Mapping[str, str]
    verify: Mapping[str, Any]
    vtk_version: str
    grid_hw: tuple[int, int] | None = None
    lint: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes for which the bundle holds something to run, ascending."""
        return tuple(sorted({artifact.batch for artifact in self.artifacts}))


@dataclass(frozen=True)
class Bundle:
    """A folder with a valid manifest."""

    root: Path
    manifest: Manifest

    def path(self, file: str) -> Path:
        """Where a file that the manifest names lies."""
        return self.root / file


def is_bundle(path: Path) -> bool:
    """Whether a manifest lies there; False for paths that cannot be looked at."""
    try:
        return (path / MANIFEST_NAME).is_file()
    except OSError:
        return False


def read_bundle(root: Path, *, check_files: bool = True) -> Bundle:
    """Read `root/manifest.json` strictly and, with `check_files`, compare the SHA-256 of every file it names.

    Raises BundleError for a folder that is no bundle, another schema version, missing, unknown or ill-typed fields,
    paths that leave the folder, and files that are missing or differ.
    """
    try:
        if not root.is_dir():
            raise BundleError(f"No bundle at {root}: expected a folder made by 'vtk export'.")
        data = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise BundleError(
            f"{root} is not a bundle: it has no {MANIFEST_NAME}.", hint="An export that was interrupted leaves none."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{root / MANIFEST_NAME} cannot be read: {error}.") from error
    bundle = Bundle(root, manifest_from_json(data))
    if check_files:
        _check_files(bundle)
    return bundle


def changed_files(bundle: Bundle) -> list[str]:
    """What the manifest names and the folder lacks ("model.b1.onnx is missing") or holds with another SHA-256."""
    manifest = bundle.manifest
    expected = {**manifest.files, **{artifact.file: artifact.sha256 for artifact in manifest.artifacts}}
    found: list[str] = []
    for file, digest in sorted(expected.items()):
        path = bundle.path(file)
        if not path.is_file():
            found.append(f"{file} is missing")
        elif (came := file_sha256(path)) != digest:
            found.append(f"{file} was changed (SHA-256 {came[:12]}…, expected {str(digest)[:12]}…)")
    return found


def write_manifest(root: Path, manifest: Manifest) -> Bundle:
    """Write the manifest, atomically and durably; call it when everything else is in place."""
    write_json_atomic(root / MANIFEST_NAME, manifest_to_json(manifest))
    return Bundle(root, manifest)


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    """Plain JSON data, the schema version first."""
    data = asdict(manifest)
    return {"schema_version": data.pop("schema_version"), **data}


def manifest_from_json(data: Any) -> Manifest:
    """The exact inverse of `manifest_to_json`. Raises BundleError."""
    _check_version(data)
    values = _take(data, Manifest, "manifest")
    artifacts = tuple(Artifact(**_take(item, Artifact, "artifact")) for item in values["artifacts"])
    labels = tuple(Label(**_take(item, Label, "label")) for item in values["labels"])
    if values["task"] not in get_args(Task):
        raise BundleError(f"{MANIFEST_NAME}: unknown task {values['task']!r}.")
    for file in (*(artifact.file for artifact in artifacts), *values["files"]):
        _check_inside(file)
    if min((artifact.batch for artifact in artifacts), default=0) < 1:
        raise BundleError(f"{MANIFEST_NAME}: artifacts must not be empty, and their batch is at least 1.")
    if not isinstance(values["source"].get("tensor_digest"), str):
        raise BundleError(f"{MANIFEST_NAME}: source lacks the tensor_digest of the weights.")
    parts: dict[str, Any] = {
        "recipe": Recipe.from_json(values["recipe"]),
        "post": PostRecipe.from_json(values["post"]),
        "labels": labels,
        "artifacts": artifacts,
        "outputs": tuple(_list(values, "outputs", dict)),
        "choices": tuple(_list(values, "choices", dict)),
        "lint": tuple(_list(values, "lint", str)),
        "grid_hw": _grid(values["grid_hw"]),
    }
    return Manifest(**{**values, **parts})


def write_json_atomic(path: Path, data: Any) -> None:
    """Write indented UTF-8 JSON so that a reader sees the old content or the new, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # a half of a character, as in a name of another encoding, becomes JSON's own escape for it
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as stream:
            json.dump(data, stream, indent=2, ensure_ascii=False, allow_nan=False)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no JSON number")


def _check_version(data: Any) -> None:
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"The bundle has schema version {version!r}; this vtk reads version {SCHEMA_VERSION}.",
            hint="Export the checkpoint again, or use the vtk version that made the bundle.",
        )


def _take(data: Any, kind: type[Any], what: str) -> dict[str, Any]:
    """The fields of a dataclass out of JSON: all of them, no others, each of the JSON type of its annotation."""
    if not isinstance(data, dict):
        raise BundleError(f"{MANIFEST_NAME}: {what} must be an object, got {type(data).__name__}.")
    names = {item.name for item in fields(kind)}
    for problem, keys in (("lacks", names - data.keys()), ("has unknown", data.keys() - names)):
        if keys:
            raise BundleError(f"{MANIFEST_NAME}: {what} {problem} the field(s) {', '.join(sorted(keys))}.")
    for item in fields(kind):
        expected = _json_type(str(item.type))
        value = data[item.name]
        if expected is not None and (not isinstance(value, expected) or isinstance(value, bool)):
            came = type(value).__name__
            raise BundleError(f"{MANIFEST_NAME}: {what}.{item.name} must be {expected.__name__}, got {came}.")
    return dict(data)


def _json_type(annotation: str) -> type[Any] | None:
    if annotation in ("str", "int"):
        return str if annotation == "str" else int
    if annotation.startswith("Mapping") or annotation in ("Recipe", "PostRecipe"):
        return dict
    if annotation.startswith("tuple") and "None" not in annotation:
        return list
    return None


def _list(values: Mapping[str, Any], name: str, kind: type[Any]) -> list[Any]:
    items: list[Any] = values[name]
    if not all(isinstance(item, kind) for item in items):
        raise BundleError(f"{MANIFEST_NAME}: every item of {name} must be {kind.__name__}.")
    return items


def _grid(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2 and all(type(side) is int and side > 0 for side in value)):
        raise BundleError(f"{MANIFEST_NAME}: grid_hw must be null or [rows, columns], got {value!r}.")
    return value[0], value[1]


def _check_inside(file: Any) -> None:
    path = PurePosixPath(file) if isinstance(file, str) else None
    if path is None or not path.parts or path.is_absolute() or ".." in path.parts or "\\" in str(file):
        raise BundleError(f"{MANIFEST_NAME} names {file!r}, which is not a path inside the bundle.")


def _check_files(bundle: Bundle) -> None:
    if changed := changed_files(bundle):
        shown = ", ".join(changed[:5]) + (", …" if len(changed) > 5 else "")
        raise BundleError(
            f"{bundle.root}: not the files that the manifest was written for: {shown}.",
            hint="Copy the bundle again, or export again.",
        )
