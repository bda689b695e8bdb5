"""A model on disk, whatever its file format: configuration, stored weights, tokenizer, and what proves the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_gguf import is_gguf, read_gguf
from vtk.exporters.checkpoint_stored import read_stored
from vtk.llm_serving.loading.gguf import gguf_config, gguf_weights
from vtk.llm_serving.loading.hf import hf_config, hf_weights
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.weights import ModelWeights
from vtk.llm_serving.tokenizer.from_gguf import gguf_tokenizer
from vtk.llm_serving.tokenizer.from_hf import hf_tokenizer
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

_EXPECTED = "Expected a GGUF file, or a folder with config.json, tokenizer.json and safetensors."

ModelFormat = Literal["gguf", "safetensors"]


@dataclass(frozen=True)
class ModelInfo:
    """What a model is and where it came from, without its weights.

    name: of the file or folder. file_sha256: of the file's bytes; for shards, of their sorted hashes.
    """

    name: str
    path: Path
    format: ModelFormat
    config: ModelConfig
    file_sha256: str
    tensor_digest: str


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A model that was read: its weights are the file's, mapped into memory as long as this is kept."""

    info: ModelInfo
    weights: ModelWeights
    tokenizer: Tokenizer


def load_model_source(path: Path) -> ModelSource:
    """Read a GGUF file, or a Hugging Face folder with config.json, tokenizer.json and safetensors.

    Weights stay as stored and mapped. Raises CheckpointError for anything that is no such model or is not served.
    """
    try:
        return _load(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def _load(path: Path) -> ModelSource:
    if path.is_dir():
        return _load_folder(path)
    if path.is_file() and is_gguf(path):
        return _load_gguf(path)
    raise CheckpointError(
        f"{path} {'is no language model' if path.exists() else 'does not exist'}.",
        hint=_EXPECTED,
    )


def _load_gguf(path: Path) -> ModelSource:
    file = read_gguf(path)
    config = gguf_config(file)
    weights = gguf_weights(file, config)
    weights.check(config, path.name)
    info = ModelInfo(path.stem, path, "gguf", config, file.file_sha256, file.tensor_digest)
    return ModelSource(info, weights, gguf_tokenizer(file, config))


def _load_folder(folder: Path) -> ModelSource:
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"The folder {folder} has no config.json.", hint=_hint_without_config(folder))
    config = hf_config(folder)
    checkpoint = read_stored(folder)
    weights = hf_weights(checkpoint, config)
    weights.check(config, folder.name)
    name = folder.resolve().name
    info = ModelInfo(name, folder, "safetensors", config, checkpoint.file_sha256, checkpoint.tensor_digest)
    return ModelSource(info, weights, hf_tokenizer(folder, config))


def _hint_without_config(folder: Path) -> str:
    if found := sorted(entry.name for entry in folder.glob("*.gguf")):
        return f"Name the GGUF file itself: {', '.join(found[:8])}."
    if (folder / "manifest.json").is_file():
        return "It looks like a bundle of a vision model, which 'vtk run' takes."
    return _EXPECTED
