"""Golden stage data: what every stage of the source model gave on a few pictures, kept inside the bundle.

With it `vtk verify` finds the first stage that differs on any machine, without the checkpoint and without torch.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from vtk.bundle import file_sha256, write_json_atomic
from vtk.engines.base import Array
from vtk.errors import BundleError
from vtk.postprocess.results import Result
from vtk.result_json import result_from_json, result_to_json

GOLDEN_DIR = "golden"
_INDEX = "golden.json"
_ARRAYS = "stages.npz"
_INPUTS = "inputs"
_OUTPUT_PREFIX = "output."
# what reading data of another form raises
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, eq=False)
class GoldenPicture:
    """One picture through all stages of the reference.

    data: the file's bytes. pixels_sha256: of the decoded RGB bytes. tensor: (3, H, W) float32. outputs: raw reference
    outputs by name, without batch dimension. result: what the postprocess recipe made of them.
    """

    name: str
    data: bytes
    pixels_sha256: str
    tensor: npt.NDArray[np.float32]
    outputs: Mapping[str, Array]
    result: Result


@dataclass(frozen=True, eq=False)
class Golden:
    """max_difference: between two runs of the reference on the same input. recipe_sha256: of the preprocess recipe.

    made_by: versions of what ran the reference.
    """

    pictures: tuple[GoldenPicture, ...]
    max_difference: float
    recipe_sha256: str
    made_by: Mapping[str, str]


def pixels_sha256(picture: npt.NDArray[np.uint8]) -> str:
    """Digest of a decoded picture, shape included."""
    return hashlib.sha256(repr(picture.shape).encode() + np.ascontiguousarray(picture).tobytes()).hexdigest()


def write_golden(root: Path, golden: Golden) -> dict[str, str]:
    """Write `golden/` into the bundle folder; returns SHA-256 by file, relative to `root`."""
    folder = root / GOLDEN_DIR
    folder.mkdir()
    files = [picture_file(index, picture.name) for index, picture in enumerate(golden.pictures)]
    for file, picture in zip(files, golden.pictures, strict=True):
        (folder / file).write_bytes(picture.data)
    np.savez_compressed(folder / _ARRAYS, **_stack(golden.pictures))
    rows = [
        {
            "file": file,
            "name": picture.name,
            "pixels_sha256": picture.pixels_sha256,
            "result": result_to_json(picture.result),
        }
        for file, picture in zip(files, golden.pictures, strict=True)
    ]
    facts = {"max_difference": golden.max_difference, "recipe_sha256": golden.recipe_sha256}
    write_json_atomic(folder / _INDEX, {**facts, "made_by": dict(golden.made_by), "pictures": rows})
    return {f"{GOLDEN_DIR}/{name}": file_sha256(folder / name) for name in (*files, _ARRAYS, _INDEX)}


def read_golden(root: Path) -> Golden:
    """Raises BundleError when the data is missing or not what `write_golden` writes."""
    folder = root / GOLDEN_DIR
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        stages = read_arrays(folder / _ARRAYS)
        pictures = tuple(_picture(folder, stages, row, item) for row, item in enumerate(index["pictures"]))
        if not pictures:
            raise ValueError("it holds no picture")
        return Golden(pictures, float(index["max_difference"]), str(index["recipe_sha256"]), dict(index["made_by"]))
    except UNREADABLE as error:
        raise BundleError(
            f"The golden data in {folder} cannot be read: {type(error).__name__}: {error}.",
            hint="Copy the bundle again, or export again.",
        ) from error


def read_arrays(path: Path) -> dict[str, Array]:
    """All of an .npz file. Raises one of `UNREADABLE`."""
    # opened here, since NumPy leaves a file open that is no archive
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return dict(stored)


def _stack(pictures: Sequence[GoldenPicture]) -> dict[str, Any]:
    outputs = {
        _OUTPUT_PREFIX + name: np.stack([picture.outputs[name] for picture in pictures]) for name in pictures[0].outputs
    }
    return {_INPUTS: np.stack([picture.tensor for picture in pictures]), **outputs}


def _picture(folder: Path, stages: Mapping[str, Array], row: int, item: Mapping[str, Any]) -> GoldenPicture:
    if Path(item["file"]).name != item["file"]:
        raise ValueError(f"it names '{item['file']}', which is no file of this folder")
    prefix = len(_OUTPUT_PREFIX)
    outputs = {key[prefix:]: array[row] for key, array in stages.items() if key.startswith(_OUTPUT_PREFIX)}
    return GoldenPicture(
        name=str(item["name"]),
        data=(folder / item["file"]).read_bytes(),
        pixels_sha256=item["pixels_sha256"],
        tensor=stages[_INPUTS][row].astype(np.float32),
        outputs=outputs,
        result=result_from_json(item["result"]),
    )


def picture_file(index: int, name: str) -> str:
    """A file name that any machine can hold: the number and the picture's own suffix."""
    suffix = Path(name).suffix
    return f"{index:02d}{suffix if suffix.isascii() and len(suffix) <= 8 else ''}"
