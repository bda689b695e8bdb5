"""What of a folder is served, under which names, and what is told of the rest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vtk.errors import InputError
from vtk.serving.model_folder import FoundModel, Inventory, find_at, find_models, merge

MakeBundle = Callable[..., Path]


def save_gguf(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return path


def save_hf(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def names(inventory: Inventory) -> list[tuple[str, str, str]]:
    return [(model.name, model.version, model.kind) for model in inventory.models]


def reasons(inventory: Inventory) -> dict[str, str]:
    return {item.path.name: item.reason for item in inventory.ignored}


def test_every_kind_of_model_is_found_by_its_name(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "toy-deim")
    save_gguf(tmp_path / "SmolLM2-135M.Q4_1.gguf")
    save_hf(tmp_path / "qwen3")
    save_gguf(tmp_path / "in-a-folder/weights.gguf")
    found = find_models(tmp_path)
    assert names(found) == [
        ("SmolLM2-135M.Q4_1", "1", "llm"),
        ("in-a-folder", "1", "llm"),
        ("qwen3", "1", "llm"),
        ("toy-deim", "1", "vision"),
    ]
    assert [model.path.name for model in found.models] == [
        "SmolLM2-135M.Q4_1.gguf",
        "weights.gguf",
        "qwen3",
        "toy-deim",
    ]
    assert not found.ignored


def test_versions_are_numbers_and_ascend_as_numbers(tmp_path: Path, make_bundle: MakeBundle) -> None:
    for version in ("10", "9", "1"):
        make_bundle(tmp_path / "mean" / version)
    for other in ("latest", "01", "-1", "0"):
        (tmp_path / "mean" / other).mkdir()
    assert names(find_models(tmp_path)) == [("mean", version, "vision") for version in ("1", "9", "10")]


def test_a_model_that_is_a_folder_itself_has_no_other_versions(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "mean")
    make_bundle(tmp_path / "mean/2")
    assert names(find_models(tmp_path)) == [("mean", "1", "vision")]


def test_a_half_copied_bundle_is_ignored_and_told(tmp_path: Path, make_bundle: MakeBundle) -> None:
    """Case V63: the manifest comes last, so that a folder without it is not whole."""
    make_bundle(tmp_path / "mean/1")
    (make_bundle(tmp_path / "mean/2") / "manifest.json").unlink()
    found = find_models(tmp_path)
    assert names(found) == [("mean", "1", "vision")]
    assert reasons(found) == {"2": "it has no manifest.json: half copied, or an export that was interrupted"}


@pytest.mark.parametrize("name", ["a b", "näme", "x;y", "%2e", "a:b"])
def test_names_that_no_address_holds_are_ignored(name: str, tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / name)
    found = find_models(tmp_path)
    assert names(found) == []
    assert "other characters" in reasons(found)[name]


def test_the_rest_is_told_why_it_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()
    (save_hf(tmp_path / "half") / "model.safetensors").unlink()
    for name in ("a", "b"):
        save_gguf(tmp_path / "two" / f"{name}.gguf")
    (tmp_path / ".hidden").mkdir()
    told = reasons(find_models(tmp_path))
    assert set(told) == {"notes.txt", "empty", "half", "two"}
    assert "neither a folder nor a GGUF" in told["notes.txt"]
    assert "no safetensors" in told["half"]
    assert "2 GGUF files" in told["two"]


def test_of_two_models_with_one_name_the_first_is_served(tmp_path: Path, make_bundle: MakeBundle) -> None:
    make_bundle(tmp_path / "mean")
    save_gguf(tmp_path / "mean.gguf")
    found = find_models(tmp_path)
    assert names(found) == [("mean", "1", "vision")]
    assert "taken by" in reasons(found)["mean.gguf"]


def test_a_link_is_followed(tmp_path: Path, make_bundle: MakeBundle) -> None:
    place = make_bundle(tmp_path / "elsewhere/mean")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/linked").symlink_to(place)
    assert names(find_models(tmp_path / "models")) == [("linked", "1", "vision")]


def test_a_folder_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert find_models(tmp_path / "none") == Inventory()


def test_a_file_in_place_of_the_model_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    with pytest.raises(InputError, match="cannot be read: Not a directory"):
        find_models(tmp_path / "models")


def the_one(path: Path) -> FoundModel:
    (model,) = find_at(path).models
    return model


def test_the_stamp_changes_with_any_file(tmp_path: Path, make_bundle: MakeBundle) -> None:
    """`cp -r` may write the manifest before the graphs: a look in between must not be the last one."""
    root = make_bundle(tmp_path / "mean")
    first = the_one(root).stamp
    assert the_one(root).stamp == first
    graph = root / "model.b1.onnx"
    graph.write_bytes(graph.read_bytes() + b"\0")
    second = the_one(root).stamp
    assert second != first
    os.utime(graph, ns=(1, 1))
    third = the_one(root).stamp
    assert third not in (first, second)
    (root / "golden/00.png").unlink()
    assert the_one(root).stamp not in (first, second, third)


def test_a_report_of_vtk_verify_is_no_other_model(tmp_path: Path, make_bundle: MakeBundle) -> None:
    root = make_bundle(tmp_path / "mean")
    before = the_one(root).stamp
    (root / "verify.json").write_text("{}")
    assert the_one(root).stamp == before


def test_the_stamp_of_a_file_is_the_files(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "x.gguf")
    before = the_one(path).stamp
    path.write_bytes(b"GGUFGGUF")
    assert the_one(path).stamp != before


def test_paths_from_several_places_make_one_inventory(tmp_path: Path, make_bundle: MakeBundle) -> None:
    one = make_bundle(tmp_path / "a/mean")
    other = shutil.copytree(one, tmp_path / "b/mean")
    third = save_gguf(tmp_path / "c/x.gguf")
    found = merge([find_at(path) for path in (third, one, other)])
    assert names(found) == [("mean", "1", "vision"), ("x", "1", "llm")]
    assert [item.path for item in found.ignored] == [other]
