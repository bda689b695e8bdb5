"""`vtk inspect`: every number of the golden checkpoints, one clear line for everything else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vtk.bundle import Artifact, Label, Manifest, file_sha256, write_manifest
from vtk.cli.main import main
from vtk.cli.text import printable
from vtk.errors import UsageError
from vtk.exporters.checkpoint_digest import tensor_digest
from vtk.exporters.family import FamilyOptions
from vtk.exporters.inspection import inspect_checkpoint
from vtk.inspection import inspect_path
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
Inspect = Callable[..., tuple[int, str, str]]

VIT = {"patch": 16, "registers": 4, "rope_base": 100.0, "norm_eps": 1e-5}
DETECTOR = {
    "backbone": "B0",
    "lab": True,
    "frozen_bn": False,
    "hidden": 128,
    "encoder_ffn": 512,
    "heads": 8,
    "reg_max": 32,
    "reg_scale": 4.0,
    "up": 0.5,
    "expansion": 0.34,
    "queries": 300,
}
EXPECTED = {
    "dinov3_vit_mlp.pth": (
        {"family": "dinov3-vit", "task": "embed", "layout": "official", "classes": None, "weights": "flat"},
        {**VIT, "dim": 128, "depth": 4, "heads": 2, "ffn": "mlp", "ffn_dim": 512, "activation": "gelu"}
        | {"qkv_bias": True, "key_bias_mask": True},
        {"pretraining data": "--pretrain-data"},
    ),
    "dinov3_vit_swiglu.pth": (
        {"family": "dinov3-vit", "task": "embed", "layout": "official", "classes": None, "weights": "flat"},
        {**VIT, "dim": 128, "depth": 2, "heads": 1, "ffn": "swiglu", "ffn_dim": 256, "activation": "silu"}
        | {"qkv_bias": False},
        {"pretraining data": "--pretrain-data"},
    ),
    "dinov3_convnext.pth": (
        {"family": "dinov3-convnext", "task": "embed", "layout": "official", "classes": None, "weights": "flat"},
        {"depths": [2, 1, 3, 2], "dims": [16, 32, 64, 128], "norm_eps": 1e-6},
        {},
    ),
    "dfine_n.pth": (
        {"family": "dfine", "variant": "N", "task": "detect", "classes": 80, "input_hw": [640, 640]},
        {**DETECTOR, "levels": 2, "in_channels": [512, 1024], "strides": [16, 32], "decoder_ffn": 512, "layers": 3}
        | {"points": [6, 6], "bottlenecks": 2, "activation": "relu"},
        {"activation family": "--family", "queries": "--num-queries", "labels": "--labels"},
    ),
    "toy_deim.pth": (
        {"family": "deim", "task": "detect", "classes": 5, "input_hw": [128, 128]},
        {**DETECTOR, "levels": 3, "in_channels": [256, 512, 1024], "strides": [8, 16, 32], "decoder_ffn": 256}
        | {"layers": 2, "points": [3, 6, 3], "bottlenecks": 2, "activation": "silu"},
        {"activation family": "--family", "queries": "--num-queries", "labels": "--labels"},
    ),
}


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Inspect:
    monkeypatch.setenv("COLUMNS", "300")

    def run(*argv: str | Path) -> tuple[int, str, str]:
        code = main(["inspect", *map(str, argv)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("name", list(EXPECTED))
def test_every_number_of_a_golden_checkpoint(name: str, inspect: Inspect) -> None:
    facts, config, assumed = EXPECTED[name]
    code, out, err = inspect(GOLDEN / name, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {key: found[key] for key in facts} == facts
    assert {key: found["config"][key] for key in config} == config
    assert {choice["name"]: choice["flag"] for choice in found["choices"] if choice["assumed"]} == assumed
    assert found["sha256"] == file_sha256(GOLDEN / name)
    assert found["recipe"]["size_hw"] == found["input_hw"]


@pytest.mark.parametrize("name", list(EXPECTED))
def test_the_table_shows_what_the_json_says(name: str, inspect: Inspect) -> None:
    found = json.loads(inspect(GOLDEN / name, "--json")[1])
    code, out, _ = inspect(GOLDEN / name)
    assert code == 0
    for key in ("family", "title", "variant", "layout", "format", "weights", "sha256", "tensor_digest"):
        assert str(found[key]) in out
    assert all(key in out for key in found["config"])
    assert f"{found['parameters']:,} in {found['tensors']} tensors" in out
    for choice in found["choices"]:
        word = "ASSUMED" if choice["assumed"] else "decided"
        assert f"{word} {choice['name']} = {choice['value']}" in out
        assert choice["flag"] in out


def test_a_decided_choice_is_not_called_assumed(inspect: Inspect) -> None:
    names = ["--labels", GOLDEN / "toy_labels.json", "--family", "deim", "--num-queries", "60"]
    found = json.loads(inspect(GOLDEN / "toy_deim.pth", "--json", *names)[1])
    assert found["class_names"] == ["zero", "one", "two", "three", "four"]
    assert found["config"]["queries"] == 60
    assert not any(choice["assumed"] for choice in found["choices"])


def test_the_size_asked_for_is_the_size_shown(inspect: Inspect) -> None:
    found = json.loads(inspect(GOLDEN / "dinov3_convnext.pth", "--json", "--size", "192,320")[1])
    assert found["input_hw"] == found["recipe"]["size_hw"] == [192, 320]


def test_the_choice_of_weights_is_said(tmp_path: Path, inspect: Inspect) -> None:
    """Case V32: EMA preferred and said so, `--weights model` takes the other."""
    average = torch.load(GOLDEN / "dinov3_convnext.pth", weights_only=True)
    raw = {key: value + 1 for key, value in average.items()}
    path = tmp_path / "train.pth"
    torch.save({"model": {f"module.{key}": v for key, v in raw.items()}, "ema": {"module": average}, "epoch": 3}, path)
    _, out, _ = inspect(path)
    assert "ema.module (moving average); the file also holds model: --weights takes it" in out
    assert tensor_digest(average) in out
    _, out, _ = inspect(path, "--weights", "model")
    assert "model; the file also holds ema.module" in out
    assert "prefixes module." in out
    assert tensor_digest(raw) in out
    code, _, err = inspect(path, "--weights", "best")
    assert code == 2
    assert "no weights 'best'" in err
    assert "ema.module, model" in err


class Shell:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def hostile_files(folder: Path) -> dict[str, str]:
    """Files by name, and what the one line about each must say."""
    torch.save({"model": {"w": torch.ones(1)}, "x": Shell(folder / "marker")}, folder / "evil.pth")
    torch.save({"sam_mask_decoder.iou_token.weight": torch.ones(1)}, folder / "sam2.pth")
    torch.save({"foreign.weight": torch.ones(1)}, folder / "foreign.pth")
    torch.save([1, 2], folder / "list.pth")
    torch.save({"\x1b]0;owned\x07\nname": torch.ones(1)}, folder / "escape.pth")
    (folder / "page.pth").write_text("<html>403</html>")
    (folder / "zero.pth").write_bytes(b"")
    (folder / "half.pth").write_bytes((folder / "evil.pth").read_bytes()[:200])
    (folder / "empty").mkdir()
    return {
        "evil.pth": "reading it would run",
        "sam2.pth": "looks like SAM 2, which vtk does not support yet",
        "foreign.pth": "1 tensors (foreign.weight, …) are not recognized",
        "list.pth": "holds a list",
        "escape.pth": "are not recognized",
        "page.pth": "HTML",
        "zero.pth": "is empty",
        "half.pth": "truncated or damaged",
        "empty": "no weight file at all",
        "gone.pth": "There is no file",
    }


def test_files_that_cannot_be_used_get_one_error_and_run_nothing(tmp_path: Path, inspect: Inspect) -> None:
    """Cases V25 and V35."""
    for name, expected in hostile_files(tmp_path).items():
        for extra in ((), ("--json",)):
            code, out, err = inspect(tmp_path / name, *extra)
            assert (code, out) == (2, ""), name
            assert expected in err
            assert err.startswith("error: ")
            assert "Traceback" not in err
            assert "\x1b" not in err
    assert not (tmp_path / "marker").exists()


def test_a_wrong_family_or_size_is_one_error(inspect: Inspect) -> None:
    code, _, err = inspect(GOLDEN / "dinov3_convnext.pth", "--family", "yolo11")
    assert code == 2
    assert "Unknown family 'yolo11'" in err
    code, _, err = inspect(GOLDEN / "dinov3_convnext.pth", "--size", "big")
    assert code == 2
    assert "HEIGHT,WIDTH" in err


def test_an_option_that_means_nothing_for_the_model_is_refused_not_dropped(inspect: Inspect) -> None:
    code, _, err = inspect(GOLDEN / "dinov3_convnext.pth", "--num-queries", "100")
    assert code == 2
    assert "--num-queries means nothing for DINOv3 ConvNeXt" in err


def test_the_python_function_gives_the_same(inspect: Inspect) -> None:
    path = GOLDEN / "dinov3_vit_mlp.pth"
    found = inspect_checkpoint(path, FamilyOptions(pretrain_data="sat"))
    assert found.spec.config["pretrain_data"] == "sat"
    assert found.dtypes == {"float32": 895_120}
    assert json.loads(json.dumps(found.to_json())) == json.loads(inspect(path, "--json", "--pretrain-data", "sat")[1])


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    root = tmp_path / "tiny bundle [1]"
    root.mkdir()
    (root / "model.b1.onnx").write_bytes(b"graph")
    manifest = Manifest(
        family="tiny",
        variant="S",
        layout="official",
        task="detect",
        config={"dim": 8, "points": [3, 6]},
        source={"name": "tiny.pth", "sha256": "a" * 64, "tensor_digest": "b" * 64},
        recipe=Recipe((4, 6), resize="letterbox"),
        post=PostRecipe("yolo"),
        labels=(Label(1, "cat"), Label(90, "dog")),
        outputs=({"name": "out", "kind": "yolo", "atol": 1e-3, "score_atol": None},),
        choices=(
            {"name": "labels", "value": "x", "flag": "--labels", "alternatives": [], "reason": "why", "assumed": True},
        ),
        lint=(),
        artifacts=(
            Artifact("onnx", "fp16", 1, "model.b1.onnx", file_sha256(root / "model.b1.onnx"), {"opset": "18"}, "any"),
        ),
        files={},
        verify={"passed": True, "pictures": 4},
        vtk_version="0.1.0",
    )
    write_manifest(root, manifest)
    return root


def test_a_bundle_shows_its_artifacts_and_where_it_came_from(bundle: Path, inspect: Inspect) -> None:
    code, out, _ = inspect(bundle)
    assert code == 0
    for text in (
        "tiny bundle [1]",
        "model.b1.onnx: onnx, fp16 as built, batch 1, for any",
        "2: cat, dog",
        "height 4, width 6",
        "letterbox",
        "iou_threshold 0.7",
        "a" * 64,
        "b" * 64,
        "passed yes, pictures 4",
        "ASSUMED labels = x: why; --labels decides",
    ):
        assert text in out
    found = json.loads(inspect(bundle, "--json")[1])
    assert (found["kind"], found["family"], found["source"]["name"]) == ("bundle", "tiny", "tiny.pth")
    assert found["artifacts"][0]["precision"] == "fp16"


def test_model_options_of_a_bundle_are_refused_not_dropped(bundle: Path, inspect: Inspect) -> None:
    for option in (("--family", "deim"), ("--weights", "model"), ("--size", "64")):
        code, _, err = inspect(bundle, *option)
        assert code == 2
        assert "everything is decided" in err
    with pytest.raises(UsageError):
        inspect_path(bundle, FamilyOptions(num_queries=3), None)


def test_a_changed_bundle_is_an_error(bundle: Path, inspect: Inspect) -> None:
    (bundle / "model.b1.onnx").write_bytes(b"other")
    code, _, err = inspect(bundle)
    assert code == 2
    assert "model.b1.onnx" in err


def test_control_characters_are_not_shown() -> None:
    assert printable("a\x1b[31mé\x07\n\udc80b") == "a�[31mé�\n�b"


def test_a_promptable_bundle_is_told_part_by_part(prompted_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(prompted_bundle)]) == 0
    told = capsys.readouterr().out
    assert "segment" in told
    for part in ("image_encoder.b2.onnx", "text_encoder.b1.onnx", "decoder.b1.onnx"):
        assert part in told
