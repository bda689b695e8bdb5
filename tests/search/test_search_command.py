"""`vtk search` from the command line: over a table that `vtk run` has made with a small bundle."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from vtk.bundle import Artifact, Manifest, file_sha256, write_manifest
from vtk.cli.main import main
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

RECIPE = Recipe((8, 8))


def write_embedder(root: Path, digest: str = "d" * 64) -> Path:
    """A bundle whose embedding is the mean of each channel."""
    root.mkdir(parents=True)
    node = helper.make_node("ReduceMean", ["images", "axes"], ["cls"], keepdims=0)
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    image = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 8, 8])
    pooled = helper.make_tensor_value_info("cls", TensorProto.FLOAT, [1, 3])
    graph = helper.make_graph([node], "mean", [image], [pooled], [axes])
    opsets = [helper.make_opsetid("", 18)]
    path = root / "model.b1.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    manifest = Manifest(
        family="mean",
        variant="S",
        layout="official",
        task="embed",
        config={},
        source={"name": "mean.pth", "sha256": "5" * 64, "tensor_digest": digest},
        recipe=RECIPE,
        post=PostRecipe("embed"),
        labels=(),
        outputs=({"name": "cls", "kind": "embedding", "atol": 1e-4, "score_atol": None},),
        choices=(),
        artifacts=(Artifact("onnx", "fp32", 1, path.name, file_sha256(path), {}, "any"),),
        files={},
        verify={},
        vtk_version="0",
    )
    write_manifest(root, manifest)
    return root


def paint(path: Path, color: tuple[int, int, int]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 7), color).save(path)
    return path


COLORS = {"red": (250, 5, 5), "ruby": (240, 5, 20), "green": (5, 250, 5), "blue": (5, 5, 250), "navy": (5, 5, 120)}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    bundle = write_embedder(tmp_path / "bundle")
    for name, color in COLORS.items():
        paint(tmp_path / f"in/{name}.png", color)
    assert main(["run", str(bundle), str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--backend", "ort"]) == 0
    return tmp_path / "out/embeddings.parquet"


@pytest.fixture
def search(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    def run(*arguments: str | Path) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["search", *map(str, arguments), "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_a_picture_that_is_not_in_the_table_is_embedded_with_the_bundle_of_the_job(
    table: Path, tmp_path: Path, search: Callable[..., list[dict[str, Any]]]
) -> None:
    dark = paint(tmp_path / "dark.png", (120, 2, 2))
    found = search(table, "--image", dark, "-k", "2")
    assert [Path(row["path"]).name for row in found] == ["red.png", "ruby.png"]
    color, red = np.array([120, 2, 2]), np.array(COLORS["red"])
    cosine = color @ red / np.linalg.norm(color) / np.linalg.norm(red)
    assert found[0]["score"] == pytest.approx(cosine, abs=1e-5)


def test_a_picture_of_the_table_needs_no_bundle(
    table: Path, tmp_path: Path, search: Callable[..., list[dict[str, Any]]]
) -> None:
    (tmp_path / "bundle/manifest.json").unlink()
    copy = tmp_path / "copy.png"
    copy.write_bytes((tmp_path / "in/blue.png").read_bytes())
    first, second = search(table, "--image", copy, "-k", "2")
    assert [Path(row["path"]).stem for row in (first, second)] == ["blue", "navy"]
    assert first["score"] == pytest.approx(1, abs=1e-6)


def test_pictures_nearly_the_same_are_grouped(table: Path, search: Callable[..., list[dict[str, Any]]]) -> None:
    groups = search(table, "--duplicates", "0.99")
    assert [[Path(path).stem for path in group["paths"]] for group in groups] == [["blue", "navy"], ["red", "ruby"]]
    assert search(table, "--duplicates", "1") == []


@pytest.mark.parametrize("what", ["--image", "--duplicates"])
def test_a_line_break_in_a_name_breaks_no_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    names = ["new\nline.png", "0.9999  forged\r.png", "\x1b[2J.png"]
    for name in names:
        paint(tmp_path / "in" / name, (9, 9, 250))
    bundle = write_embedder(tmp_path / "bundle")
    assert main(["run", str(bundle), str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--backend", "ort"]) == 0
    words = ["search", str(tmp_path / "out/embeddings.parquet"), what]
    words += [str(tmp_path / "in" / names[0])] if what == "--image" else []
    capsys.readouterr()
    assert main(words) == 0
    lines = capsys.readouterr().out.split("\n")[:-1]
    paths = [f"{tmp_path}/in/{name}" for name in (r"new\nline.png", r"0.9999  forged\r.png", r"\x1b[2J.png")]
    assert sorted(line.split(maxsplit=1)[1] if what == "--image" else line.strip() for line in lines[-3:]) == sorted(
        paths
    )
    assert main([*words, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    shown = [row["path"] for row in found] if what == "--image" else found[0]["paths"]
    assert sorted(shown) == sorted(f"{tmp_path}/in/{name}" for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image", "none.png"], "none.png"),
        (["--image", "dark.png", "--image", "text.png"], "text.png: The content is no picture"),
        (["--image", "dark.png", "--bundle", "other"], "holds other weights"),
        (["--image", "dark.png", "--bundle", "none"], "No bundle at none"),
        (["--image", "dark.png", "--approximate"], "--approximate is for --duplicates"),
    ],
)
def test_what_cannot_be_searched_is_said_in_one_line(
    table: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    paint(tmp_path / "dark.png", (120, 2, 2))
    (tmp_path / "text.png").write_text("hello")
    write_embedder(tmp_path / "other", "e" * 64)
    assert main(["search", str(table), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_table_without_its_job_asks_for_the_bundle(
    table: Path, tmp_path: Path, search: Callable[..., list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "alone.parquet"
    table.rename(alone)
    dark = paint(tmp_path / "dark.png", (120, 2, 2))
    assert main(["search", str(alone), "--image", str(dark)]) == 2
    assert "Pass the bundle with --bundle" in capsys.readouterr().err
    assert len(search(alone, "--image", dark, "--bundle", tmp_path / "bundle")) == len(COLORS)
