"""The README's table of families: each small checkpoint of the tests exported, verified and built in every way.

    python benchmarks/families.py [NAME …] [--precision fp32 fp16 bf16 mixed int8 fp8] [--json FILE]

For each precision: export (which verifies with ONNX Runtime), verify once more with OpenVINO, and build TensorRT-RTX
plans for sm_89, where these packages are installed. A plan cannot be run without a GPU, so it is "built", never
"verified". int8 and fp8 are calibrated on the sample pictures of the tests; what their gate refuses is printed as such.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from vtk.bundle import read_bundle
from vtk.demo_weights import dinov2_small

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "data" / "golden"
TOYS = GOLDEN / "toy_images"
TARGET = "sm_89"


@dataclass(frozen=True)
class Model:
    """A checkpoint and the words that `vtk export` needs for it. trained: it is verified on the toy pictures."""

    title: str
    path: Path
    words: tuple[str, ...] = ()
    trained: bool = False


@dataclass(frozen=True)
class Row:
    """What came of one precision of a model; texts for the table."""

    model: str
    precision: str
    onnx: str
    openvino: str
    tensorrt_rtx: str


def models(scratch: Path) -> dict[str, Model]:
    sam3 = scratch / "sam3"
    sam3.mkdir()
    for name, source in (("config.json", "sam3_small_config.json"), ("model.safetensors", "sam3_small.safetensors")):
        (sam3 / name).write_bytes((GOLDEN / source).read_bytes())
    return {
        "sam3": Model("SAM3", sam3),
        "dinov3": Model("DINOv3 ViT", GOLDEN / "dinov3_vit_mlp.pth"),
        "dinov3-swiglu": Model("DINOv3 ViT+ (SwiGLU)", GOLDEN / "dinov3_vit_swiglu.pth"),
        "dinov3-convnext": Model("DINOv3 ConvNeXt", GOLDEN / "dinov3_convnext.pth"),
        "dinov2": Model("DINOv2", dinov2_small(scratch / "dinov2.safetensors")),
        "deim": toy("DEIM", "toy_deim.pth", 128, "--family", "deim"),
        "dfine": Model("D-FINE", GOLDEN / "dfine_n.pth", ("--family", "dfine")),
        "deimv2-hgnet": toy("DEIMv2 (HGNetV2)", "toy_deimv2_atto.pth", 160, "--num-queries", "60"),
        "deimv2-dino": toy("DEIMv2 (DINOv3)", "toy_deimv2_sta.pth", 128, "--num-queries", "60"),
        "rtdetrv2": toy("RT-DETRv2", "toy_rtdetrv2", 128),
        "rfdetr": toy("RF-DETR", "toy_rfdetr", 160),
        "yolov8": toy("YOLOv8", "toy_yolov8.pth", 160),
    }


def toy(title: str, file: str, side: int, *words: str) -> Model:
    """A detector that knows the toy pictures."""
    labels = ("--labels", str(GOLDEN / "toy_labels.json"))
    return Model(f"{title} (trained)", GOLDEN / file, ("--size", f"{side},{side}", *labels, *words), trained=True)


def vtk(*words: str | Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "vtk.cli.main", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stderr


def reason(text: str) -> str:
    """The line that says what went wrong."""
    lines = [line for line in text.splitlines() if line.startswith("error:")]
    return lines[-1].removeprefix("error: ")[:160] if lines else "no reason"


def try_model(name: str, model: Model, precision: str, scratch: Path) -> Row:
    out = scratch / f"{name}-{precision}"
    words = ["export", model.path, "-o", out, "--batch", "1", "--precision", precision, *model.words]
    if model.trained:
        words += ["--images", TOYS]
    if precision in ("int8", "fp8"):
        words += ["--calibrate", TOYS]
    code, told = vtk(*words)
    if code:
        print(f"{name} {precision}: {reason(told)}", flush=True)
        return Row(model.title, precision, f"refused: {reason(told)}", "not run", "not run")
    openvino, rtx = "not run", "not run"
    if find_spec("openvino") is not None:
        code, told = vtk("verify", out, "--backend", "openvino")
        openvino = "verified here" if code == 0 else f"refused: {reason(told)}"
    if find_spec("tensorrt_rtx") is not None:
        code, told = vtk("build", out, "--target", TARGET)
        rtx = f"built here ({plan_bytes(out) / 1e6:.1f} MB)" if code == 0 else f"refused: {reason(told)}"
    return Row(model.title, precision, "verified here", openvino, rtx)


def plan_bytes(bundle: Path) -> int:
    artifacts = read_bundle(bundle).manifest.artifacts
    return sum((bundle / item.file).stat().st_size for item in artifacts if item.backend == "tensorrt_rtx")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--precision", nargs="+", default=["fp32", "fp16"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        known = models(scratch)
        for name in args.names or known:
            for precision in args.precision:
                rows.append(try_model(name, known[name], precision, scratch))
                print(f"| {' | '.join(asdict(rows[-1]).values())} |", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
