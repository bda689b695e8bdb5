"""What can be served: bundles, GGUF files and Hugging Face folders, by name and version.

A model folder holds, for a model NAME, `NAME.gguf`, or a folder `NAME` that is a model itself (version "1") or holds
its versions as `NAME/1`, `NAME/2`, … Links are followed. What is not whole yet is told, never served.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vtk.bundle import MANIFEST_NAME, is_bundle
from vtk.errors import InputError
from vtk.serving.settings import Kind
from vtk.verification import VERIFY_NAME

NAME_PATTERN = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,255}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_NOTES = {VERIFY_NAME}  # `vtk verify` writes it beside a bundle that is served; the model is the same

Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class FoundModel:
    """One version of a model on disk. stamp: path, size and modification time of its files; it changes with them."""

    name: str
    version: str
    kind: Kind
    path: Path
    stamp: Stamp


@dataclass(frozen=True)
class Ignored:
    """An entry of a model folder that cannot be served, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Inventory:
    """What a look at the disk has found: models by name and ascending version, and the rest."""

    models: tuple[FoundModel, ...] = ()
    ignored: tuple[Ignored, ...] = ()


def find_models(folder: Path) -> Inventory:
    """Everything in a model folder; hidden entries are passed over. A folder that does not exist is empty.

    Raises InputError for a folder that cannot be read.
    """
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except FileNotFoundError:
        return Inventory()
    except OSError as error:
        raise InputError(f"The model folder {folder} cannot be read: {error.strerror}.") from error
    return merge([find_at(entry) for entry in entries])


def find_at(path: Path) -> Inventory:
    """The model at one path, in all its versions."""
    name = path.stem if path.is_file() else path.name
    if NAME_PATTERN.fullmatch(name) is None:
        return Inventory(ignored=(Ignored(path, "its name has other characters than A–Z a–z 0–9 . _ -"),))
    try:
        versions = _versions(path)
        found = [_look(name, version, place) for version, place in (versions or {"1": path}).items()]
    except OSError as error:
        return Inventory(ignored=(Ignored(path, f"it cannot be read: {error.strerror}"),))
    models = tuple(item for item in found if isinstance(item, FoundModel))
    return Inventory(models, tuple(item for item in found if isinstance(item, Ignored)))


def merge(parts: Sequence[Inventory]) -> Inventory:
    """One inventory out of several places; of two places with one name the first is served."""
    taken: dict[str, Path] = {}
    models: list[FoundModel] = []
    ignored: list[Ignored] = []
    for part in parts:
        ignored += part.ignored
        free = [model for model in part.models if model.name not in taken]
        models += free
        ignored += [
            Ignored(model.path, f"the name '{model.name}' is taken by {taken[model.name]}")
            for model in part.models
            if model.name in taken
        ]
        taken |= {model.name: model.path for model in free}
    return Inventory(tuple(sorted(models, key=lambda model: (model.name, int(model.version)))), tuple(ignored))


def _versions(path: Path) -> dict[str, Path]:
    """Sub-folders with a number as their name, ascending; none where the folder is a model itself."""
    if not path.is_dir() or _kind(path) is not None:
        return {}
    numbers = [entry.name for entry in path.iterdir() if _VERSION.fullmatch(entry.name) and entry.is_dir()]
    return {number: path / number for number in sorted(numbers, key=int)}


def _look(name: str, version: str, path: Path) -> FoundModel | Ignored:
    kind = _kind(path)
    if kind is None:
        return Ignored(path, _why_not(path))
    return FoundModel(name, version, kind, _weights_file(path), tuple(_stamp(path)))


def _kind(path: Path) -> Kind | None:
    if path.is_file():
        return "llm" if path.suffix == ".gguf" else None
    if is_bundle(path):
        return "vision"
    is_huggingface = (path / "config.json").is_file() and any(path.glob("*.safetensors"))
    return "llm" if is_huggingface or len(_ggufs(path)) == 1 else None


def _weights_file(path: Path) -> Path:
    """The GGUF file of a folder that holds nothing else to serve."""
    return _ggufs(path)[0] if path.is_dir() and not is_bundle(path) and len(_ggufs(path)) == 1 else path


def _ggufs(path: Path) -> list[Path]:
    return sorted(path.glob("*.gguf"))


def _why_not(path: Path) -> str:
    if path.is_file():
        return "it is neither a folder nor a GGUF file"
    if any(path.glob("*.onnx")):
        return f"it has no {MANIFEST_NAME}: half copied, or an export that was interrupted"
    if (path / "config.json").is_file():
        return "it has no safetensors beside its config.json: half copied?"
    if found := _ggufs(path):
        return f"it holds {len(found)} GGUF files; one model has one"
    return f"it is no model: neither {MANIFEST_NAME}, nor config.json with safetensors, nor a GGUF file"


def _stamp(path: Path) -> Iterator[tuple[str, int, int]]:
    if path.is_file():
        yield _entry(path, path.name)
        return
    for place, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(set(names) - _NOTES):
            file = Path(place) / name
            yield _entry(file, file.relative_to(path).as_posix())


def _entry(file: Path, name: str) -> tuple[str, int, int]:
    facts = file.stat()
    return name, facts.st_size, facts.st_mtime_ns
