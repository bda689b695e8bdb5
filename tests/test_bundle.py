"""Bundles on disk: strict to read, whole or absent."""

import json
import os
import string
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.bundle import (
    MANIFEST_NAME,
    Artifact,
    Label,
    Manifest,
    changed_files,
    file_sha256,
    is_bundle,
    manifest_from_json,
    manifest_to_json,
    read_bundle,
    write_json_atomic,
    write_manifest,
)
from vtk.errors import BundleError, UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe
from vtk.staging import staged_bundle

MANIFEST = Manifest(
    family="tiny",
    variant="S",
    layout="official",
    task="detect",
    config={"dim": 8, "nested": {"points": [3, 6, 3]}},
    source={"name": "tiny.pth", "sha256": "a" * 64, "tensor_digest": "b" * 64},
    recipe=Recipe((4, 6), mean=(0.1, 0.2, 0.3)),
    post=PostRecipe("detr", score_threshold=0.25),
    labels=(Label(1, "cat"), Label(90, "toothbrush, electric")),
    outputs=({"name": "pred_logits", "kind": "logits", "atol": 1e-3, "score_atol": None},),
    choices=({"name": "activation", "value": "silu"},),
    artifacts=(Artifact("onnx", "fp32", 1, "model.b1.onnx", "0" * 64, {"opset": "18"}, "any"),),
    files={"model.weights": "1" * 64},
    verify={"passed": True},
    vtk_version="0.1.0",
)


def rewritten(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The JSON of the manifest after one change."""
    data: dict[str, Any] = json.loads(json.dumps(manifest_to_json(MANIFEST)))
    change(data)
    return data


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle folder with one graph and one weights file."""
    root = tmp_path / "bundle"
    root.mkdir()
    (root / "model.b1.onnx").write_bytes(b"graph")
    (root / "model.weights").write_bytes(b"weights")
    artifact = replace(MANIFEST.artifacts[0], sha256=file_sha256(root / "model.b1.onnx"))
    files = {"model.weights": file_sha256(root / "model.weights")}
    write_manifest(root, replace(MANIFEST, artifacts=(artifact,), files=files))
    return root


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(
    names=st.lists(st.tuples(st.integers(0, 10**6), text), max_size=4),
    family=text,
    grid=st.none() | st.tuples(st.integers(1, 99), st.integers(1, 99)),
    size=st.tuples(st.integers(1, 9999), st.integers(1, 9999)),
    mean=st.tuples(*[st.floats(-1, 1)] * 3),
    batch=st.integers(1, 512),
)
def test_a_manifest_survives_json(
    names: list[tuple[int, str]],
    family: str,
    grid: tuple[int, int] | None,
    size: tuple[int, int],
    mean: tuple[float, float, float],
    batch: int,
) -> None:
    manifest = replace(
        MANIFEST,
        family=family,
        labels=tuple(Label(*item) for item in names),
        grid_hw=grid,
        recipe=replace(MANIFEST.recipe, size_hw=size, mean=mean),
        artifacts=(replace(MANIFEST.artifacts[0], batch=batch),),
    )
    assert manifest_from_json(json.loads(json.dumps(manifest_to_json(manifest)))) == manifest


def test_a_written_bundle_is_read_back(bundle: Path) -> None:
    read = read_bundle(bundle)
    assert read.manifest.labels == MANIFEST.labels
    assert read.manifest.batches == (1,)
    assert read.path("model.weights").read_bytes() == b"weights"
    assert "toothbrush, electric" in (bundle / MANIFEST_NAME).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(manifest_to_json(MANIFEST)))
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(BundleError, match=name if name != "schema_version" else "schema version None"):
        manifest_from_json(rewritten(lambda data: data.pop(name)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.update(colour="red"), r"unknown the field\(s\) colour"),
        (lambda data: data["artifacts"][0].update(speed=9), r"artifact has unknown the field\(s\) speed"),
        (lambda data: data["labels"][0].pop("name"), r"label lacks the field\(s\) name"),
        (lambda data: data.update(schema_version=1), "schema version 1; this vtk reads version 2"),
        (lambda data: data.update(schema_version="2"), "schema version '2'"),
        (lambda data: data.update(task="caption"), "task 'caption'"),
        (lambda data: data.update(family=7), "family must be str, got int"),
        (lambda data: data.update(labels={}), "labels must be list, got dict"),
        (lambda data: data.update(files=[]), "files must be dict, got list"),
        (lambda data: data.update(grid_hw=[4]), "grid_hw"),
        (lambda data: data.update(grid_hw="ab"), "grid_hw"),
        (lambda data: data["artifacts"].append(3), "artifact must be an object, got int"),
        (lambda data: data["artifacts"][0].update(batch=True), "batch must be int, got bool"),
        (lambda data: data["artifacts"][0].update(batch=0), "batch"),
        (lambda data: data["recipe"].update(size_hw=[0, 4]), "preprocess recipe"),
        (lambda data: data["recipe"].update(sharpen=True), "preprocess recipe"),
        (lambda data: data["post"].update(kind="magic"), "postprocess recipe"),
        (lambda data: data.update(outputs=["logits"]), "outputs"),
        (lambda data: data.update(artifacts=[]), "artifacts must not be empty"),
        (lambda data: data["source"].pop("tensor_digest"), "tensor_digest"),
        (lambda data: data["source"].update(tensor_digest=7), "tensor_digest"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[dict[str, Any]], object], told: str) -> None:
    with pytest.raises(BundleError, match=told):
        manifest_from_json(rewritten(change))


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a/../../x", "", ".", "a\\b", "C:\\x", 5, None])
def test_paths_never_leave_the_folder(file: object) -> None:
    with pytest.raises(BundleError, match=r"inside the bundle|file must be str"):
        manifest_from_json(rewritten(lambda data: data["artifacts"][0].update(file=file)))
    if isinstance(file, str):
        with pytest.raises(BundleError, match="inside the bundle"):
            manifest_from_json(rewritten(lambda data: data["files"].update({file: "0" * 64})))


def test_a_folder_without_manifest_is_no_bundle(bundle: Path) -> None:
    (bundle / MANIFEST_NAME).unlink()
    with pytest.raises(BundleError, match="not a bundle"):
        read_bundle(bundle)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"text"', b"[" * 99999])
def test_a_damaged_manifest_is_one_clear_error(bundle: Path, content: bytes) -> None:
    (bundle / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(BundleError):
        read_bundle(bundle)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_has_not_are_refused(bundle: Path, constant: str) -> None:
    path = bundle / MANIFEST_NAME
    path.write_text(path.read_text(encoding="utf-8").replace("0.25", constant), encoding="utf-8")
    with pytest.raises(BundleError, match=f"holds {constant}"):
        read_bundle(bundle)


def test_a_name_that_no_file_can_have_is_no_bundle(tmp_path: Path) -> None:
    assert not is_bundle(tmp_path / ("x" * 300))
    with pytest.raises(BundleError, match="File name too long"):
        read_bundle(tmp_path / ("x" * 300))
    with pytest.raises(UsageError, match="File name too long"), staged_bundle(tmp_path / ("x" * 300)):
        pytest.fail("the block must not run")


def test_neither_a_file_nor_nothing_is_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("file", "nothing"):
        with pytest.raises(BundleError, match="vtk export"):
            read_bundle(tmp_path / name)


def test_changed_and_missing_files_are_named(bundle: Path) -> None:
    (bundle / "model.weights").write_bytes(b"weightz")
    (bundle / "model.b1.onnx").unlink()
    with pytest.raises(BundleError, match=r"model\.b1\.onnx is missing, model\.weights was changed"):
        read_bundle(bundle)
    assert len(changed_files(read_bundle(bundle, check_files=False))) == 2


def test_json_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json_atomic(path, {"value": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json_atomic(path, {"value": float("nan")})
    with pytest.raises(TypeError):
        write_json_atomic(path, {"value": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"value": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


def export_that_fails(output: Path, error: type[BaseException]) -> None:
    with staged_bundle(output, force=True) as staging:
        (staging / "model.b1.onnx").write_bytes(b"half")
        raise error


@pytest.mark.parametrize("error", [ValueError, Interrupted])
def test_a_failed_export_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        export_that_fails(tmp_path / "deep" / "out", error)
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_failed_export_leaves_the_old_bundle_whole(bundle: Path) -> None:
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}
    with pytest.raises(Interrupted):
        export_that_fails(bundle, Interrupted)
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]


def test_force_replaces_a_bundle_completely(bundle: Path) -> None:
    with staged_bundle(bundle, force=True) as staging:
        (staging / "new").write_bytes(b"")
    assert [path.name for path in bundle.iterdir()] == ["new"]
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]


def test_without_force_a_bundle_stays(bundle: Path) -> None:
    with pytest.raises(UsageError, match="--force"), staged_bundle(bundle):
        pytest.fail("the block must not run")


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    for name in ("photos", "photos/cat.jpg"):
        with pytest.raises(UsageError, match="not a bundle"), staged_bundle(tmp_path / name, force=force):
            pytest.fail("the block must not run")
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"cat"


def test_a_bundle_that_appeared_in_the_meantime_stays(tmp_path: Path, bundle: Path) -> None:
    """Two exports to one place: the second one to end is refused as if it had begun later."""
    output = tmp_path / "out"
    with pytest.raises(UsageError, match="already a bundle"), staged_bundle(output):
        bundle.rename(output)
    read_bundle(output)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_is_followed(tmp_path: Path, bundle: Path) -> None:
    (tmp_path / "latest").symlink_to("bundle")
    (tmp_path / "dangling").symlink_to("elsewhere")
    for name in ("latest", "dangling"):
        with staged_bundle(tmp_path / name, force=True) as staging:
            (staging / name).write_bytes(b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "dangling", "elsewhere", "latest"]
    assert (bundle / "latest").is_file()
    assert (tmp_path / "elsewhere" / "dangling").is_file()


def test_the_working_folder_may_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    with staged_bundle(Path()) as staging:
        (staging / "new").write_bytes(b"")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]


def test_a_mount_point_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "out")
    with pytest.raises(UsageError, match=r"mount point.*out/NAME"), staged_bundle(tmp_path / "out"):
        pytest.fail("the block must not run")
    with staged_bundle(tmp_path / "out" / "bundle"):
        pass


def test_a_path_that_is_not_utf8_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not UTF-8"), staged_bundle(tmp_path / os.fsdecode(b"out\xff")):
        pytest.fail("the block must not run")


def test_what_a_killed_export_left_is_removed_and_a_running_one_kept(tmp_path: Path) -> None:
    (tmp_path / ".out.partial-1").mkdir()
    (tmp_path / ".out2.partial-1").mkdir()
    with staged_bundle(tmp_path / "out[1]") as running:
        (tmp_path / ".out[1].partial-1").mkdir()
        with staged_bundle(tmp_path / "out"):
            assert sorted(path.name for path in tmp_path.glob(".out.*")) == [f".out.partial-{os.getpid()}"]
        script = "import sys, pathlib, vtk.staging as s; s._remove_abandoned(pathlib.Path(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", script, str(tmp_path / "out[1]")], check=True, timeout=60)
        assert [path.name for path in tmp_path.glob(".out[[]1].*")] == [running.name]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out2.partial-1", "out", "out[1]"]


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with staged_bundle(tmp_path / "out") as staging:
        (staging / string.ascii_letters).write_bytes(b"")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [string.ascii_letters]
