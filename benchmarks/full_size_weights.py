"""Checkpoints of the published sizes with random weights, each in the layout of its official file.

    python benchmarks/full_size_weights.py NAME FILE [--small]

--small writes a model of the same make that tests can afford. Weights are drawn so that signals keep their size
through the depth, and batch norms hold the statistics of a picture, as training leaves them: an engine that is wrong
then answers wrongly, which with the weights of a plain constructor can stay unseen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from random_weights.detectors import deimv2_x, dfine_x, rtdetrv2_r101
from random_weights.dinov3 import dinov3_7b, dinov3_l
from random_weights.drawing import Tensors
from random_weights.sam3 import sam3

SEED = 7
# files in which the weights are one entry of several
NESTED = ("sam3", "rtdetrv2-r101", "deimv2-x", "dfine-x")
MODELS: Mapping[str, Callable[[bool], Tensors]] = {
    "sam3": sam3,
    "deimv2-x": deimv2_x,
    "rtdetrv2-r101": rtdetrv2_r101,
    "dinov3-l": dinov3_l,
    "dfine-x": dfine_x,
    "dinov3-7b": dinov3_7b,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    with torch.no_grad():
        tensors = MODELS[args.name](args.small)
    torch.save({"model": tensors} if args.name in NESTED else tensors, args.file)
    floating = sum(value.numel() for value in tensors.values() if value.is_floating_point())
    print(f"{args.name}: {floating / 1e6:.1f} M numbers in {args.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
