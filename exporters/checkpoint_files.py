"""Weight files by their content: what kind a file is, and its stored tree of tensors. Nothing in a file is run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from safetensors import SafetensorError, safe_open

from vtk.errors import CheckpointError, UnsafeCheckpointError
from vtk.exporters.checkpoint_hash import file_sha256
from vtk.exporters.checkpoint_json import read_json

CheckpointFormat = Literal["safetensors", "safetensors-sharded", "pth", "yolov8-pickle"]
# From a file to its tensors by name and its metadata.
SafetensorsReader: TypeAlias = Callable[[Path], tuple[dict[object, object], dict[str, Any]]]

MAX_FILE_BYTES = 1 << 38
MAX_HEADER_BYTES = 100_000_000

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_FOREIGN = (
    (_ZIP, "a file that torch.save wrote"),
    (_PICKLE, "a file that torch.save wrote"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x89PNG", "a PNG picture"),
    (b"RIFF", "a WebP picture or another RIFF file"),
    (b"GGUF", "a GGUF language model, which vtk chat and vtk generate take"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a Git LFS pointer: the weights themselves were never downloaded"),
    (b"<", "an HTML or XML page, often an error page saved in place of the weights"),
    (b"\x08", "a protocol buffer, probably an ONNX graph"),
)


@dataclass(frozen=True)
class WeightFile:
    """A file as stored. `tree` may nest; `metadata` are facts beside the tensors, `part_metadata` those of one part."""

    format: CheckpointFormat
    tree: Mapping[object, object]
    sha256: str
    num_bytes: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    part_metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def metadata_of(self, part: str) -> dict[str, Any]:
        """The facts that belong to one set of weights."""
        return {**self.metadata, **self.part_metadata.get(part, {})}


def open_weight_file(path: Path, read: SafetensorsReader | None = None) -> WeightFile:
    """Read a weight file, or a folder of one model, by content and not by suffix.

    read: for a caller that takes safetensors alone and holds them in its own way; without it they, and what torch.save
    wrote, are read into tensors of torch, which is imported then.
    """
    try:
        return _open_folder(path, read) if path.is_dir() else _open_file(path, read)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def _open_file(path: Path, read: SafetensorsReader | None) -> WeightFile:
    if not path.exists():
        raise CheckpointError(f"There is no file {path}.")
    if not path.is_file():
        raise CheckpointError(f"{path} is not a regular file.")
    size = path.stat().st_size
    if not 0 < size <= MAX_FILE_BYTES:
        what = "is empty" if size == 0 else f"has {size} bytes; vtk reads up to {MAX_FILE_BYTES}"
        raise CheckpointError(f"{path.name} {what}.", hint="Download or copy the checkpoint again.")
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith((_ZIP, _PICKLE)) and read is None:
        return _open_torch_zip(path, size) if head.startswith(_ZIP) else _open_torch_legacy(path, size)
    if head[8:9] == b"{":
        tensors, metadata = _read_safetensors(path, read or _read_torch_tensors)
        return WeightFile("safetensors", tensors, file_sha256(path), size, metadata)
    others = ", and .pth or .pt files written by torch.save" if read is None else " for this model"
    raise CheckpointError(
        f"{path.name} is not a checkpoint: it looks like {_foreign_kind(head)}.",
        hint=f"vtk reads .safetensors files{others}.",
    )


def _open_torch_legacy(path: Path, size: int) -> WeightFile:
    from vtk.exporters.checkpoint_torch import load_torch_legacy, trainer_args

    tree = load_torch_legacy(path)
    return WeightFile("pth", tree, file_sha256(path), size, trainer_args(tree))


def _open_torch_zip(path: Path, size: int) -> WeightFile:
    from vtk.exporters.checkpoint_torch import check_torch_zip, load_torch_zip, trainer_args
    from vtk.exporters.checkpoint_yolo import is_yolo_pickle, read_yolo_pickle

    pickle_name = check_torch_zip(path)
    try:
        tree = load_torch_zip(path, pickle_name)
        return WeightFile("pth", tree, file_sha256(path), size, trainer_args(tree))
    except UnsafeCheckpointError:
        if not is_yolo_pickle(path, pickle_name):
            raise
    tree, facts = read_yolo_pickle(path, pickle_name)
    return WeightFile("yolov8-pickle", tree, file_sha256(path), size, part_metadata=facts)


def _foreign_kind(head: bytes) -> str:
    text = head.lstrip(b"\xef\xbb\xbf \r\n\t")
    return next((kind for magic, kind in _FOREIGN if text.startswith(magic)), "another kind of file, or a damaged one")


def _read_safetensors(path: Path, read: SafetensorsReader) -> tuple[dict[object, object], dict[str, Any]]:
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes > min(MAX_HEADER_BYTES, path.stat().st_size - 8):
        raise CheckpointError(f"{path.name} is damaged or truncated: its header claims {header_bytes} bytes.")
    try:
        return read(path)
    except (SafetensorError, ValueError, RuntimeError, UnicodeError) as error:
        raise CheckpointError(f"{path.name} is damaged or truncated: {_first_line(error)}.") from error


def _read_torch_tensors(path: Path) -> tuple[dict[object, object], dict[str, Any]]:
    with safe_open(path, framework="pt", device="cpu") as file:
        tensors: dict[object, object] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return tensors, dict(file.metadata() or {})


def _open_folder(folder: Path, read: SafetensorsReader | None) -> WeightFile:
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else None
    metadata = {} if config is None else {"config": config}
    indexes = sorted(folder.glob("*.safetensors.index.json"))
    if len(indexes) == 1:
        return _open_shards(folder, indexes[0], metadata, read)
    single = folder / "model.safetensors"
    if not indexes and single.is_file():
        file = _open_file(single, read)
        return WeightFile(file.format, file.tree, file.sha256, file.num_bytes, {**file.metadata, **metadata})
    if not indexes and single.is_symlink():
        raise CheckpointError(f"{single} is a link to a file that is not there.", hint="Download the model again.")
    seen = sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".safetensors", ".pth", ".pt", ".bin"))
    named = ", ".join(seen[:8]) or "no weight file at all"
    raise CheckpointError(
        f"The folder {folder} holds neither model.safetensors nor one *.safetensors.index.json, but {named}.",
        hint=f"Name the weight file itself: {named}." if seen and read is None else None,
    )


def _open_shards(folder: Path, index: Path, metadata: dict[str, Any], read: SafetensorsReader | None) -> WeightFile:
    weight_map = read_json(index).get("weight_map")
    if not weight_map or not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise CheckpointError(f"{index.name} has no 'weight_map' from tensor names to file names.")
    shards = sorted(set(weight_map.values()))
    tensors: dict[object, object] = {}
    hashes: list[str] = []
    num_bytes = 0
    for shard in shards:
        if Path(shard).name != shard:
            raise CheckpointError(f"{index.name} names '{shard}', which is not a file of this folder.")
        file = _open_file(folder / shard, read)
        tensors |= {name: tensor for name, tensor in file.tree.items() if weight_map.get(name) == shard}
        hashes.append(file.sha256)
        num_bytes += file.num_bytes
    missing = sorted(set(weight_map) - {str(name) for name in tensors})
    if missing:
        raise CheckpointError(
            f"{index.name} lists {len(missing)} tensors that its files lack: {', '.join(missing[:5])}."
        )
    digest = hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()
    return WeightFile("safetensors-sharded", tensors, digest, num_bytes, metadata)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200].rstrip(".")
