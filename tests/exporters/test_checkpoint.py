"""Reading weight files: formats, the parts of a file, and one clear line for everything that is not one."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from vtk.errors import CheckpointError, UnsafeCheckpointError, UsageError
from vtk.exporters import checkpoint_files, checkpoint_torch
from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.checkpoint_hash import file_sha256

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tensors() -> Tensors:
    return {"stem.weight": torch.randn(4, 3), "stem.bias": torch.randn(4).to(torch.bfloat16), "count": torch.tensor(7)}


def same(one: Any, other: Tensors) -> bool:
    return set(one) == set(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in other
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_a_flat_pth(tmp_path: Path, tensors: Tensors, legacy: bool) -> None:
    path = tmp_path / "flat.pth"
    torch.save(OrderedDict(tensors), path, _use_new_zipfile_serialization=not legacy)
    checkpoint = read_checkpoint(path)
    assert (checkpoint.format, checkpoint.weights, checkpoint.available_weights) == ("pth", "flat", ("flat",))
    assert same(checkpoint.tensors, tensors)
    assert checkpoint.num_parameters == 16
    assert checkpoint.file_sha256 == file_sha256(path)


def test_safetensors_by_content_whatever_the_suffix(tmp_path: Path, tensors: Tensors) -> None:
    path = tmp_path / "weights.bin"
    save_file(tensors, path, metadata={"format": "pt", "author": "é"})
    checkpoint = read_checkpoint(path)
    assert checkpoint.format == "safetensors"
    assert same(checkpoint.tensors, tensors)
    assert checkpoint.metadata == {"format": "pt", "author": "é"}


def test_a_folder_brings_its_config(tmp_path: Path, tensors: Tensors) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "dinov3_vit"}')
    checkpoint = read_checkpoint(tmp_path)
    assert same(checkpoint.tensors, tensors)
    assert checkpoint.metadata["config"] == {"model_type": "dinov3_vit"}
    assert checkpoint.file_sha256 == file_sha256(tmp_path / "model.safetensors")


def write_shards(folder: Path, shards: dict[str, Tensors]) -> Path:
    for name, part in shards.items():
        save_file(part, folder / name)
    weight_map = {key: name for name, part in shards.items() for key in part}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def test_shards_read_like_one_file(tmp_path: Path, tensors: Tensors) -> None:
    names = list(tensors)
    write_shards(
        tmp_path, {"a.safetensors": {names[0]: tensors[names[0]]}, "b.safetensors": {n: tensors[n] for n in names[1:]}}
    )
    sharded = read_checkpoint(tmp_path)
    assert sharded.format == "safetensors-sharded"
    assert same(sharded.tensors, tensors)
    whole = tmp_path / "whole.safetensors"
    save_file(tensors, whole)
    assert read_checkpoint(whole).tensor_digest == sharded.tensor_digest


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"weight_map": {"x": "../secret.safetensors"}}, "not a file of this folder"),
        ({"weight_map": {"x": "/etc/passwd"}}, "not a file of this folder"),
        ({"weight_map": {"x": "gone.safetensors"}}, r"no file .*gone\.safetensors"),
        ({"weight_map": {"x": "a.safetensors"}}, "lists 1 tensors that its files lack: x"),
        ({"weight_map": {"x": 3}}, "no 'weight_map'"),
        ({"weight_map": {}}, "no 'weight_map'"),
        ({}, "no 'weight_map'"),
        ([], "should hold a JSON object"),
    ],
)
def test_a_wrong_index_is_one_clear_line(tmp_path: Path, tensors: Tensors, change: Any, match: str) -> None:
    index = write_shards(tmp_path, {"a.safetensors": tensors})
    index.write_text(json.dumps(change))
    with pytest.raises(CheckpointError, match=match):
        read_checkpoint(tmp_path)


def test_the_average_is_preferred_and_the_raw_model_can_be_asked_for(tmp_path: Path) -> None:
    """Case V32."""
    raw, average = {"w": torch.zeros(3)}, {"w": torch.ones(3)}
    path = tmp_path / "train.pth"
    optimizer = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    torch.save(
        {"model": raw, "ema": {"module": average, "updates": 9}, "optimizer": optimizer, "date": "2026-01-01"}, path
    )
    chosen = read_checkpoint(path)
    assert (chosen.weights, chosen.available_weights) == ("ema.module", ("ema.module", "model"))
    assert same(chosen.tensors, average)
    assert same(read_checkpoint(path, weights="ema").tensors, average)
    assert same(read_checkpoint(path, weights="model").tensors, raw)
    with pytest.raises(UsageError, match=r"no weights 'teacher'.*ema\.module, model"):
        read_checkpoint(path, weights="teacher")


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state_dict", "teacher", "model_ema"])
def test_known_wrappers(tmp_path: Path, tensors: Tensors, key: str) -> None:
    torch.save({key: tensors, "epoch": 3}, tmp_path / "x.pth")
    checkpoint = read_checkpoint(tmp_path / "x.pth")
    assert checkpoint.weights == key
    assert same(checkpoint.tensors, tensors)


def test_an_empty_average_is_no_choice(tmp_path: Path, tensors: Tensors) -> None:
    torch.save({"ema": {"module": {}, "updates": 0}, "model": tensors}, tmp_path / "x.pth")
    assert read_checkpoint(tmp_path / "x.pth").available_weights == ("model",)


def test_what_holds_no_tensor_is_ignored_and_named(tmp_path: Path, tensors: Tensors) -> None:
    torch.save({**tensors, "epoch": 3, "_metadata": {"version": 1}, 5: torch.ones(1)}, tmp_path / "x.pth")
    checkpoint = read_checkpoint(tmp_path / "x.pth")
    assert same(checkpoint.tensors, tensors)
    assert checkpoint.ignored == ("epoch", "_metadata", "5")


def test_tensors_that_share_storage_are_read_apart(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    stored = {"base": base, "view": base.t(), "row": base[1:2, ::2], "scalar": base[0, 0], "none": base[:0]}
    torch.save(stored, tmp_path / "x.pth")
    assert same(read_checkpoint(tmp_path / "x.pth").tensors, stored)


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def unsafe_values(marker: Path) -> dict[str, Any]:
    return {
        "types.SimpleNamespace": SimpleNamespace(lr=1),
        "numpy._core.multiarray.scalar": np.float64(1.0),
        "torch.nn.modules.linear.Linear": nn.Linear(2, 2),
        f"{os.system.__module__}.system": Hostile(marker),
    }


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("culprit", list(unsafe_values(Path())))
def test_unsafe_files_name_the_culprit_and_run_nothing(tmp_path: Path, culprit: str, legacy: bool) -> None:
    """Case V35."""
    marker = tmp_path / "marker"
    path = tmp_path / "x.pth"
    content = {"model": {"w": torch.ones(2)}, "extra": unsafe_values(marker)[culprit]}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UnsafeCheckpointError) as caught:
        read_checkpoint(path)
    text = str(caught.value)
    assert f"reading it would run {culprit}." in text
    assert "\n" not in text
    assert not any(advice in text for advice in ("weights_only", "safe_globals", "trust", "allowlist"))
    assert not marker.exists()


def test_a_class_that_the_caller_calls_safe_is_read_past(tmp_path: Path, tensors: Tensors) -> None:
    """Case V35: torch's own list of safe classes, by name, is the way to trust a file from Python."""
    torch.save({"model": tensors, "args": SimpleNamespace(lr=1)}, tmp_path / "x.pth")
    with torch.serialization.safe_globals([SimpleNamespace]):
        assert same(read_checkpoint(tmp_path / "x.pth").tensors, tensors)
    with pytest.raises(UnsafeCheckpointError):
        read_checkpoint(tmp_path / "x.pth")


@pytest.mark.parametrize("legacy", [False, True])
def test_v35_the_command_line_of_a_trainer_is_read_past(tmp_path: Path, tensors: Tensors, legacy: bool) -> None:
    """Case V35: an argparse.Namespace beside the weights, as official trainers store it; its plain values are kept."""
    args = argparse.Namespace(resolution=384, class_names=["cat"], device=torch.device("cpu"), model=torch.ones(1))
    before = set(torch.serialization.get_safe_globals())
    path = tmp_path / "x.pth"
    torch.save({"model": tensors, "args": args}, path, _use_new_zipfile_serialization=not legacy)
    found = read_checkpoint(path)
    assert same(found.tensors, tensors)
    assert found.metadata["args"] == {"resolution": 384, "class_names": ["cat"]}
    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.parametrize("culprit", list(unsafe_values(Path())))
def test_v35_a_command_line_hides_nothing(tmp_path: Path, culprit: str) -> None:
    marker = tmp_path / "marker"
    args = argparse.Namespace(lr=1, extra=unsafe_values(marker)[culprit])
    torch.save({"model": {"w": torch.ones(2)}, "args": args}, tmp_path / "x.pth")
    with pytest.raises(UnsafeCheckpointError, match=re.escape(f"reading it would run {culprit}.")):
        read_checkpoint(tmp_path / "x.pth")
    assert not marker.exists()


class Called:
    """Asks for a Namespace made with arguments, or with a state that names its class or its hooks."""

    def __init__(self, arguments: tuple[Any, ...], state: Any) -> None:
        self.arguments, self.state = arguments, state

    def __reduce__(self) -> tuple[Any, ...]:
        return argparse.Namespace, self.arguments, self.state


@pytest.mark.parametrize("state", [{"__setstate__": "x", "__class__": "y"}, (None, {"__doc__": "x"})])
def test_v35_attributes_of_a_command_line_are_values(tmp_path: Path, state: Any) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "args": Called((), state)}, tmp_path / "x.pth")
    assert list(read_checkpoint(tmp_path / "x.pth").tensors) == ["w"]


@pytest.mark.parametrize(
    ("arguments", "state"), [((1,), {}), (({"a": 1},), {}), ((), ({}, {"__class__": OrderedDict}))]
)
def test_v35_a_command_line_of_another_kind_is_one_error(tmp_path: Path, arguments: Any, state: Any) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "args": Called(arguments, state)}, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        read_checkpoint(tmp_path / "x.pth")


def test_the_environment_cannot_turn_the_check_off(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    torch.save({"model": {"w": torch.ones(2)}, "extra": Hostile(marker)}, tmp_path / "x.pth")
    script = "import sys, pathlib, vtk.exporters.checkpoint as c; c.read_checkpoint(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "x.pth"],
        env={**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "UnsafeCheckpointError" in done.stderr
    assert not marker.exists()


def deep(opcodes: bytes) -> bytes:
    """A dictionary whose key is a tuple nested 300,000 deep: hashing it overflows the stack of the process."""
    return b"\x80\x02}" + b")" + opcodes * (300_000 // opcodes.count(b"\x85")) + b"Ns."


@pytest.mark.parametrize("opcodes", [b"\x85", b"\x85q\x00h\x00\x86", b"K\x010\x85", b"\x85q\x010h\x01"])
def test_nesting_made_to_crash_the_reader_is_refused(tmp_path: Path, opcodes: bytes) -> None:
    path = tmp_path / "x.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", deep(opcodes))
    with pytest.raises(UnsafeCheckpointError, match=r"nested too deeply|unfolds"):
        read_checkpoint(path)
    path.write_bytes(b"\x80\x02K\x01." * 3 + deep(opcodes))
    with pytest.raises(UnsafeCheckpointError, match=r"nested too deeply|unfolds"):
        read_checkpoint(path)


@pytest.mark.timeout(60)
def test_a_key_that_takes_for_ever_to_hash_is_refused(tmp_path: Path) -> None:
    """A pair of a pair with itself, 60 times: 2^60 values to visit, in a file of 300 bytes."""
    doubled = b"\x80\x02}" + b")" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"Ns."
    path = tmp_path / "x.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", doubled)
    with pytest.raises(UnsafeCheckpointError, match="unfolds to more than 1,000,000 values"):
        read_checkpoint(path)
    path.write_bytes(b"\x80\x02K\x01." * 3 + doubled)
    with pytest.raises(UnsafeCheckpointError, match="unfolds"):
        read_checkpoint(path)


def test_a_pickle_of_endless_operations_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "losses": [0.5] * 5_000}, tmp_path / "x.pth")
    assert read_checkpoint(tmp_path / "x.pth").num_parameters == 2
    monkeypatch.setattr("vtk.exporters.checkpoint_nesting.MAX_OPERATIONS", 5_000)
    with pytest.raises(UnsafeCheckpointError, match="more than 5,000 operations"):
        read_checkpoint(tmp_path / "x.pth")


def test_a_program_is_not_weights(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        for name in ("x/data.pkl", "x/constants.pkl", "x/code/__torch__.py"):
            archive.writestr(name, b"")
    with pytest.raises(UnsafeCheckpointError, match="TorchScript"):
        read_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"<!doctype html><html><body>403</body></html>", "HTML"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 64, "JPEG"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "PNG"),
        (b"GGUF\x03\0\0\0" + b"\0" * 64, "GGUF"),
        (b"\x08\x0a\x12\x07pytorch" + b"\0" * 64, "ONNX"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"\0" * 512, "another kind"),
        (b"\x80\x02}.", "truncated or damaged|not a whole file"),
        (b"\x80\x04", "truncated or damaged|not a whole file"),
        (b"PK\x03\x04" + b"\0" * 40, "truncated or damaged"),
        (struct.pack("<Q", 1 << 60) + b"{", "header claims"),
        (struct.pack("<Q", 40) + b'{"a": 1}', "header claims"),
        (struct.pack("<Q", 8) + b'{"a": 1}', "damaged or truncated"),
        (struct.pack("<Q", 2) + b"{}", "holds no tensors"),
        (struct.pack("<Q", 2) + b"{]", "damaged or truncated"),
    ],
)
def test_foreign_and_broken_files_are_one_clear_line(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "model.pth"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=match) as caught:
        read_checkpoint(path)
    assert "model.pth" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("kept", [0.02, 0.3, 0.7, 0.999])
def test_half_a_download_is_one_clear_line(tmp_path: Path, tensors: Tensors, kept: float, legacy: bool) -> None:
    path = tmp_path / "x.pth"
    torch.save({"model": tensors}, path, _use_new_zipfile_serialization=not legacy)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    # A cut inside the name of a torch function leaves a name that torch does not know, and is refused as such.
    with pytest.raises(CheckpointError, match=r"truncated|damaged|not a whole file|_rebuild_tensor_\."):
        read_checkpoint(path)


@pytest.mark.parametrize("seed", range(3))
def test_any_damage_is_read_or_one_clear_line(tmp_path: Path, tensors: Tensors, seed: int) -> None:
    """Random bytes changed in a file of each format: the reader never fails in another way than by its own error."""
    torch.save({"model": tensors, "ema": {"module": tensors}}, tmp_path / "a")
    torch.save(tensors, tmp_path / "b", _use_new_zipfile_serialization=False)
    save_file(tensors, tmp_path / "c")
    random = np.random.default_rng(seed)
    wholes = [(tmp_path / name).read_bytes() for name in "abc"]
    for _ in range(100):
        for whole in wholes:
            data = bytearray(whole)
            for place in random.integers(0, len(data), random.integers(1, 9)):
                data[place] = random.integers(256)
            (tmp_path / "x.pth").write_bytes(data)
            with contextlib.suppress(CheckpointError):
                read_checkpoint(tmp_path / "x.pth")


def test_half_a_safetensors_file(tmp_path: Path, tensors: Tensors) -> None:
    path = tmp_path / "x.safetensors"
    save_file(tensors, path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        read_checkpoint(path)


@pytest.mark.parametrize("value", [[1, 2], 3, None, "text", torch.ones(3)])
def test_a_file_without_a_dictionary(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=f"holds .*{type(value).__name__}, not a dictionary"):
        read_checkpoint(tmp_path / "x.pth")


@pytest.mark.parametrize("value", [{}, {"epoch": 1}, {"backbone": {"w": torch.ones(1)}}, {"model": {}}])
def test_a_dictionary_without_known_weights_lists_what_it_has(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=rf"holds no tensors .*: {next(iter(value), '.none')}"):
        read_checkpoint(tmp_path / "x.pth")


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no file"):
        read_checkpoint(tmp_path / "gone.pth")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_checkpoint(Path("/dev/zero"))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"There is no file|cannot be read"):
        read_checkpoint(tmp_path / "file" / "x.pth")
    with pytest.raises(CheckpointError, match="cannot be read: File name too long"):
        read_checkpoint(tmp_path / ("x" * 300))


def test_an_unreadable_file_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.pth").write_bytes(b"data")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"x\.pth cannot be read: Permission denied"):
        read_checkpoint(tmp_path / "x.pth")


def test_a_folder_of_other_weights_names_them(tmp_path: Path) -> None:
    (tmp_path / "best.pth").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"Name the weight file itself: best\.pth"):
        read_checkpoint(tmp_path)


def test_limits_hold(tmp_path: Path, tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.pth"
    torch.save(tensors, path)
    monkeypatch.setattr(checkpoint_torch, "MAX_PICKLE_BYTES", 10)
    with pytest.raises(CheckpointError, match=r"pickle has \d+ bytes; vtk reads up to 10"):
        read_checkpoint(path)
    monkeypatch.setattr(checkpoint_files, "MAX_FILE_BYTES", 10)
    with pytest.raises(CheckpointError, match=r"has \d+ bytes; vtk reads up to 10"):
        read_checkpoint(path)


def test_a_small_file_cannot_unfold_to_terabytes(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=f"claim {4 << 40} bytes"):
        read_checkpoint(tmp_path / "x.pth")


def test_a_compressed_archive_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    torch.save(tensors, tmp_path / "x.pth")
    with zipfile.ZipFile(tmp_path / "x.pth") as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(tmp_path / "x.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    with pytest.raises(CheckpointError, match="compressed"):
        read_checkpoint(tmp_path / "x.pth")


def test_sparse_tensors_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"w": torch.eye(3).to_sparse()}, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match="tensor w is not stored as a plain dense tensor"):
        read_checkpoint(tmp_path / "x.pth")


def test_a_config_that_is_no_json(tmp_path: Path, tensors: Tensors) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        read_checkpoint(tmp_path)
