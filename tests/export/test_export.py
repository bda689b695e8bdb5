"""`vtk export` as a user meets it: a verified bundle, or one clear message and nothing left behind."""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import vtk
from vtk.bundle import MANIFEST_NAME, Label, read_bundle
from vtk.cli.main import main
from vtk.errors import VerifyError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout and stderr of one command."""

    def command(*args: object) -> tuple[int, str, str]:
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return command


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_export_is_a_verified_bundle(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    output = tmp_path / "out"
    code, out, err = run("export", checkpoint, "-o", output, "--batch", "2,1")
    assert code == 0, err
    assert out == f"{output}\n"
    assert names(output) == ["golden", MANIFEST_NAME, "model.b1.onnx", "model.b2.onnx", "verify.json"]
    manifest = read_bundle(output).manifest
    assert manifest.batches == (1, 2)
    assert manifest.source["sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert manifest.verify["passed"] is True
    assert manifest.labels == tuple(Label(index, f"class_{index}") for index in range(3))
    assert [artifact.precision for artifact in manifest.artifacts] == ["fp32", "fp32"]
    assert run("verify", output)[0] == 0


def test_an_assumed_choice_is_printed_with_its_flag(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    _, _, err = run("export", checkpoint, "-o", tmp_path / "out", "--batch", "1")
    assert "tiny S/4" in err
    assert "assumed color order: RGB (not in the file); --order decides (also: BGR)" in err
    assert "flat" in err


def test_the_default_name_comes_from_the_file_and_the_variant(
    checkpoint: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("export", checkpoint, "--batch", "1")
    assert (code, out) == (0, "tiny-tiny-s-4\n")
    assert read_bundle(tmp_path / "tiny-tiny-s-4").manifest.family == "tiny"


def test_own_pictures_labels_and_size_are_used(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for index in range(9):
        Image.new("RGB", (10, 10), (index * 20, 0, 255 - index * 20)).save(pictures / f"{index}.png")
    (tmp_path / "labels.txt").write_text("cat\ndog\nbird\n")
    output = tmp_path / "out"
    options = ("--batch", "1", "--images", pictures, "--labels", tmp_path / "labels.txt", "--size", "4,8")
    assert run("export", checkpoint, "-o", output, *options)[0] == 0
    manifest = read_bundle(output).manifest
    assert [label.name for label in manifest.labels] == ["cat", "dog", "bird"]
    assert manifest.recipe.size_hw == (4, 8)
    index = json.loads((output / "golden" / "golden.json").read_text())
    assert [item["name"] for item in index["pictures"]] == ["0.png", "2.png", "4.png", "6.png"]


def test_a_wrong_graph_is_never_written(
    checkpoint: Path, tmp_path: Path, run: Run, broken_engine: Callable[[int], None]
) -> None:
    broken_engine(2)
    before = names(tmp_path)
    code, out, err = run("export", checkpoint, "-o", tmp_path / "out", "--batch", "1,2")
    assert (code, out) == (1, "")
    assert "First stage that differs: engine: batch 2" in err
    assert names(tmp_path) == before


def test_a_failed_export_keeps_the_old_bundle(
    checkpoint: Path, tmp_path: Path, run: Run, broken_engine: Callable[[int], None]
) -> None:
    output = tmp_path / "out"
    assert run("export", checkpoint, "-o", output, "--batch", "1")[0] == 0
    before = (output / MANIFEST_NAME).read_bytes()
    broken_engine(1)
    assert run("export", checkpoint, "-o", output, "--batch", "1", "--force")[0] == 1
    assert (output / MANIFEST_NAME).read_bytes() == before
    read_bundle(output)


def test_an_interrupt_leaves_nothing(
    checkpoint: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vtk.exporting.make_golden", interrupt)
    before = names(tmp_path)
    assert run("export", checkpoint, "-o", tmp_path / "out", "--batch", "1")[0] == 130
    assert names(tmp_path) == before


def test_what_is_there_is_not_replaced(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").write_bytes(b"cat")
    code, _, err = run("export", checkpoint, "-o", photos, "--force")
    assert (code, names(photos)) == (2, ["cat.jpg"])
    assert "not a bundle" in err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--fp16", "--opset", "16"], "overflow in half precision"),
        (["--dynamic-batch"], "--batch 1,4,8"),
        (["--batch", "0"], "--batch takes"),
        (["--batch", "1,x"], "got '1,x'"),
        (["--batch", ""], "--batch takes"),
        (["--opset", "16"], "Opset 16 is too old"),
        (["--opset", "99"], "Opset 99 is newer"),
        (["--images", "nowhere"], "nowhere"),
        (["--size", "0,4"], "--size"),
        (["--labels", "nowhere.txt"], "nowhere.txt"),
        (["--family", "dogs"], "Unknown family 'dogs'"),
        (["--weights", "ema"], "ema"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    options: list[str], told: str, checkpoint: Path, tmp_path: Path, run: Run
) -> None:
    before = names(tmp_path)
    code, out, err = run("export", checkpoint, "-o", tmp_path / "out", *options)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err
    assert names(tmp_path) == before


def test_labels_of_another_count_are_refused(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    code, _, err = run("export", checkpoint, "-o", tmp_path / "out", "--labels", tmp_path / "labels.txt")
    assert code == 2
    assert "3 classes and the labels name 2" in err


def test_an_unsupported_family_lists_the_supported_ones(tmp_path: Path, run: Run) -> None:
    """Case V25."""
    path = tmp_path / "strange.safetensors"
    save_file({"strange.layer": torch.ones(3)}, path)
    code, out, err = run("export", path, "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "not recognized" in err
    assert all(family in err for family in ("DINOv3", "D-FINE", "YOLOv8"))
    assert names(tmp_path) == ["strange.safetensors"]


@pytest.mark.parametrize("package", ["torch", "onnx", "onnxscript"])
def test_a_missing_package_names_the_install_command(
    package: str, checkpoint: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtk.requirements.find_spec", lambda name: None if name == package else object())
    code, _, err = run("export", checkpoint, "-o", tmp_path / "out")
    assert code == 2
    assert package in err
    assert "pip install 'vtk-deploy[export]'" in err


def test_python_raises_what_the_command_line_prints(
    checkpoint: Path, tmp_path: Path, broken_engine: Callable[[int], None]
) -> None:
    broken_engine(1)
    with pytest.raises(VerifyError, match="First stage that differs"):
        vtk.export(checkpoint, tmp_path / "out", batches=[1])


def test_the_public_names_are_functions_whatever_was_imported_first() -> None:
    """A module `vtk.export` would hide the function of that name once it is imported."""
    for name in ("export", "verify", "inspect", "load"):
        assert callable(getattr(vtk, name))
        assert f"vtk.{name}" not in sys.modules
