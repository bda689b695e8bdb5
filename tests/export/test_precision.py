"""`vtk export --precision`: the plan before, the share after, and no bundle that is not what it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vtk
from vtk.bundle import read_bundle
from vtk.cli.main import main
from vtk.errors import VtkError
from vtk.exporters.precision import PrecisionPlan, plan_precision

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout and stderr of one command."""

    def command(*args: object) -> tuple[int, str, str]:
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return command


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Eight pictures of noise, each around another color."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for index in range(8):
        color = rng.integers(0, 200, size=3)
        noise = rng.integers(0, 55, size=(12, 12, 3)) + color
        Image.fromarray(noise.astype(np.uint8)).save(folder / f"{index}.png")
    return folder


def scaled(checkpoint: Path, **factors: float) -> Path:
    """The checkpoint with some tensors multiplied."""
    tensors = load_file(checkpoint)
    changed = {name: tensor * factors.get(name.replace(".", "_"), 1.0) for name, tensor in tensors.items()}
    path = checkpoint.with_name("scaled.safetensors")
    save_file(changed, path)
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("flag", [("--fp16",), ("--precision", "fp16")])
def test_fp16_prints_its_plan_and_its_share(flag: tuple[str, ...], checkpoint: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "out"
    code, _, err = run("export", checkpoint, "-o", output, "--batch", "1,2", *flag)
    assert code == 0, err
    plan, share = err.index("nodes stay float32"), err.index("as built, 100% of the parameters")
    assert plan < err.index("reductions ×1: sums over many elements") < share
    manifest = read_bundle(output).manifest
    assert [artifact.precision for artifact in manifest.artifacts] == ["fp16", "fp16"]
    assert manifest.artifacts[0].builder["half_parameters"] == "1.000"
    assert "reductions 1" in manifest.artifacts[0].builder["fp32_nodes"]
    assert "model.b1.rounded.onnx" in manifest.files
    graph = onnx.load(output / "model.b1.onnx").graph
    floats = {tensor.data_type for tensor in graph.initializer if tensor.data_type != onnx.TensorProto.INT64}
    assert floats == {onnx.TensorProto.FLOAT16}
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {onnx.TensorProto.FLOAT}
    assert run("verify", output)[0] == 0


def test_what_only_rounding_shows_fails_the_export(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    """The convolution gives numbers beyond float16; ONNX Runtime's CPU kernels hide it, an engine would not."""
    loud = scaled(checkpoint, conv_weight=3e5, conv_bias=3e5, head_weight=1e-5)
    code, _, err = run("export", loud, "-o", tmp_path / "out", "--batch", "1", "--fp16")
    assert code == 1
    assert "First stage that differs: rounding: batch 1, rounded: logits inf" in err
    assert "3 values of 3 are NaN or infinite" in err
    assert "out" not in names(tmp_path)
    assert run("export", loud, "-o", tmp_path / "out", "--batch", "1")[0] == 0


def test_bf16_is_verified_over_rounded_graphs_and_says_so(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "out"
    code, _, err = run("export", checkpoint, "-o", output, "--batch", "1,2", "--precision", "bf16")
    assert code == 0, err
    manifest = read_bundle(output).manifest
    assert manifest.verify["backend"] == "ort, float32 rounded as bf16"
    assert manifest.artifacts[0].builder["opset"] == "22"
    assert {"model.b1.rounded.onnx", "model.b2.rounded.onnx"} <= manifest.files.keys()
    code, out, _ = run("verify", output)
    assert code == 0
    assert "float32 rounded as bf16" in out
    kinds = {tensor.data_type for tensor in onnx.load(output / "model.b1.onnx").graph.initializer}
    assert onnx.TensorProto.BFLOAT16 in kinds


def test_no_bfloat16_where_nobody_asked(checkpoint: Path, tmp_path: Path) -> None:
    """Case V37: a checkpoint in bfloat16 gives float32 graphs."""
    half = tmp_path / "half.safetensors"
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(checkpoint).items()}, half)
    root = vtk.export(half, tmp_path / "out", batches=[1])
    graph = onnx.load(root / "model.b1.onnx").graph
    assert onnx.TensorProto.BFLOAT16 not in {tensor.data_type for tensor in graph.initializer}
    assert read_bundle(root).manifest.artifacts[0].precision == "fp32"


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_v13_a_graph_that_stays_mostly_float32_is_not_called_half(
    precision: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case V13: never a file labelled fp16 from an fp32 graph."""

    def keep_all(*args: Any, **options: Any) -> PrecisionPlan:
        plan = plan_precision(*args, **options)
        return replace(plan, kept=dict.fromkeys(("conv2d", "mean", "linear", "logits"), "outputs"))

    monkeypatch.setattr("vtk.exporters.precision_files.plan_precision", keep_all)
    with pytest.raises(VtkError, match=rf"cannot be called {precision}"):
        vtk.export(checkpoint, tmp_path / "out", batches=[1], precision=precision)
    assert "out" not in names(tmp_path)


def test_a_lost_argument_cannot_give_a_label(checkpoint: Path, tmp_path: Path) -> None:
    """Case V14: what the manifest says is what the graph holds, for each precision."""
    for precision, kind in (("fp32", onnx.TensorProto.FLOAT), ("fp16", onnx.TensorProto.FLOAT16)):
        root = vtk.export(checkpoint, tmp_path / precision, batches=[1], precision=precision)  # type: ignore[arg-type]
        assert read_bundle(root).manifest.artifacts[0].precision == precision
        inner = onnx.shape_inference.infer_shapes(onnx.load(root / "model.b1.onnx")).graph.value_info
        assert kind in {value.type.tensor_type.elem_type for value in inner}


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_8_bits_pass_the_gate_with_their_figures(
    precision: str, checkpoint: Path, tmp_path: Path, pictures: Path, run: Run, quantizes_all: None
) -> None:
    output = tmp_path / "out"
    options = ("--precision", precision, "--calibrate", pictures, "--images", pictures, "--max-drop", "0.2")
    code, _, err = run("export", checkpoint, "-o", output, "--batch", "1,2", *options)
    assert code == 0, err
    assert "agreement on the first class" in err
    assert "lost on 8 pictures, 0.2 allowed" in err
    manifest = read_bundle(output).manifest
    assert {artifact.precision for artifact in manifest.artifacts} == {precision}
    facts = manifest.artifacts[0].builder
    assert facts["calibration_pictures"] == "8"
    assert float(facts["quantized_parameters"]) > 0.5
    assert float(facts["drop"]) <= float(facts["max_drop"]) == 0.2
    assert run("verify", output)[0] == 0


def test_8_bits_that_lose_too_much_are_refused(
    checkpoint: Path, tmp_path: Path, pictures: Path, run: Run, quantizes_all: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtk.exporting_quantized._ranges", lambda graph, *_: {"images": 1e-3, "mean": 1e-3})
    before = names(tmp_path)
    options = ("--precision", "int8", "--calibrate", pictures, "--images", pictures)
    code, out, err = run("export", checkpoint, "-o", tmp_path / "out", "--batch", "1", *options)
    assert (code, out) == (1, "")
    assert "of the agreement on the first class on 8 pictures" in err
    assert "0.01 is allowed" in err
    assert names(tmp_path) == before


@pytest.fixture
def quantizes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model has but a first layer and a head, which stay otherwise."""
    monkeypatch.setattr("vtk.exporters.precision_quantize.KEPT_KINDS", ())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--precision", "int8"], "--calibrate DIR"),
        (["--calibrate", "."], "--calibrate means nothing without --precision int8"),
        (["--precision", "int8", "--max-drop", "0.1"], "--max-drop means nothing without --calibrate"),
        (["--precision", "int8", "--calibrate", ".", "--max-drop", "3"], "--max-drop is a share in 0..1"),
        (["--precision", "int8", "--calibrate", "nowhere"], "nowhere is not a folder"),
        (["--precision", "fp8", "--calibrate", ".", "--opset", "18"], "Opset 18 has no float8"),
        (["--precision", "fp16", "--opset", "16"], "overflow in half precision"),
    ],
)
def test_what_does_not_fit_together_is_said_in_one_line(
    options: list[str], told: str, checkpoint: Path, tmp_path: Path, run: Run
) -> None:
    before = names(tmp_path)
    code, out, err = run("export", checkpoint, "-o", tmp_path / "out", *options)
    assert (code, out) == (2, "")
    assert told in err
    assert names(tmp_path) == before


def test_calibration_pictures_are_looked_for_before_the_checkpoint_is_read(tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    words = ("--precision", "int8", "--calibrate", tmp_path / "empty", "-o", tmp_path / "out")
    code, _, err = run("export", tmp_path / "no.pth", *words)
    assert code == 2
    assert f"--calibrate {tmp_path / 'empty'}: No pictures found" in err.replace("\n", " ")
