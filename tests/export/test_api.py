"""The Python API on a bundle."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vtk
from vtk.bundle import read_bundle
from vtk.cli.main import main
from vtk.errors import BackendError
from vtk.postprocess.results import Classification
from vtk.preprocess.decode import DecodeOptions


def test_an_exported_bundle_is_what_was_asked_for(tiny_bundle: Path) -> None:
    manifest = read_bundle(tiny_bundle).manifest
    assert (tiny_bundle.name, manifest.batches, manifest.recipe.size_hw) == ("out", (1, 4), (8, 8))
    assert vtk.verify(tiny_bundle).passed
    assert vtk.inspect(tiny_bundle).to_json()["family"] == "tiny"


def test_every_form_of_a_picture_gives_the_same_result(tiny_bundle: Path, tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(picture).save(path)
    with vtk.load(tiny_bundle) as model:
        assert (model.task, model.backend, model.device) == ("classify", "ort", "cpu")
        assert [label.name for label in model.labels] == ["cat", "dog", "bird"]
        results = [*model([picture, Image.fromarray(picture), path, str(path)]), model(path.read_bytes()), model(path)]
    for result in results:
        assert isinstance(result, Classification)
        assert result.resolution_wh == (30, 20)
        np.testing.assert_allclose(result.scores, results[0].scores, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_a_list_gives_as_many_results_in_order(tiny_bundle: Path, count: int) -> None:
    pictures = [np.full((5, 5 + index, 3), 28 * index, np.uint8) for index in range(count)]
    with vtk.load(tiny_bundle) as model:
        results = model(pictures)
        single = [model(picture) for picture in pictures]
    assert [result.resolution_wh for result in results] == [(5 + index, 5) for index in range(count)]
    for one, other in zip(results, single, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)


def test_a_bad_picture_is_named(tiny_bundle: Path, tmp_path: Path, save_picture: Callable[..., Path]) -> None:
    good = np.zeros((4, 4, 3), np.uint8)
    (tmp_path / "bad.jpg").write_bytes(b"<html>")
    data = save_picture(tmp_path / "good.jpg", size_wh=(80, 60)).read_bytes()
    with vtk.load(tiny_bundle) as model:
        for bad, told in (
            (np.zeros((4, 4, 3)), r"Picture 5: .*float64"),
            (np.zeros((4, 4), np.uint8), r"Picture 5: .*\(4, 4\)"),
            (7, r"Picture 5: .*got int"),
            (b"", r"Picture 5: "),
            (tmp_path / "bad.jpg", r"Picture 5: .*bad\.jpg"),
            (Image.open(io.BytesIO(data[: len(data) // 2])), r"Picture 5: The PIL image .*truncated"),
            (Image.fromarray(np.full((4, 4), np.nan, np.float32)), r"Picture 5: .*no known scale"),
        ):
            with pytest.raises(vtk.VtkError, match=told):
                model([good] * 5 + [bad])  # type: ignore[list-item]
        with pytest.raises(vtk.VtkError, match="got int"):
            model(7)  # type: ignore[call-overload]
        assert len(model([good])) == 1


def test_pil_pictures_follow_the_rule_of_files(tiny_bundle: Path, tmp_path: Path) -> None:
    """16 bits are scaled, not clipped to white, and transparency is dropped or laid on the color asked for."""
    ramp = Image.fromarray((np.arange(256, dtype=np.int32) * 257).reshape(8, 32)).convert("I;16")
    ramp.save(tmp_path / "ramp.png")
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    for options in (DecodeOptions(), DecodeOptions(alpha=(0, 0, 255))):
        with vtk.load(tiny_bundle, decode_options=options) as model:
            for name in ("ramp.png", "clear.png"):
                with Image.open(tmp_path / name) as image:
                    np.testing.assert_array_equal(model(image).scores, model(tmp_path / name).scores)


def test_pil_pictures_turn_upright(tiny_bundle: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20), "red").save(tmp_path / "turned.jpg", exif=exif)
    with vtk.load(tiny_bundle) as model, Image.open(tmp_path / "turned.jpg") as image:
        assert model(image).resolution_wh == model(tmp_path / "turned.jpg").resolution_wh == (20, 30)


def test_cuda_on_a_machine_without_it_is_an_error(
    tiny_bundle: Path, tmp_path: Path, save_picture: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Case V60: never the CPU in place of what was asked, and `auto` says what it took."""
    picture = save_picture(tmp_path / "a.png")
    with pytest.raises(BackendError, match="CUDAExecutionProvider"):
        vtk.load(tiny_bundle, device="cuda")
    for command in (["verify", str(tiny_bundle)], ["run", str(tiny_bundle), str(picture), "-o", str(tmp_path / "out")]):
        assert main([*command, "--device", "cuda"]) == 2
        assert "CUDAExecutionProvider" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*command, "--device", "auto"]) == 0
    assert "ort on cpu" in capsys.readouterr().err


def test_a_closed_model_says_so(tiny_bundle: Path) -> None:
    model = vtk.load(tiny_bundle)
    model.close()
    with pytest.raises(BackendError, match="closed"):
        model(np.zeros((4, 4, 3), np.uint8))
