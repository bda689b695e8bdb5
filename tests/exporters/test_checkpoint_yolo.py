"""Pickled YOLOv8 files are made here with a fake package of the same module names, then read without it (case V35)."""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from vtk.errors import CheckpointError
from vtk.exporters import checkpoint_pickle, checkpoint_yolo
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.checkpoint_pickle import Record, read_records

Save = Callable[..., Path]
NAMES = {0: "person", 1: "car"}


class Conv(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, rows, 3, bias=False)
        self.bn = nn.BatchNorm2d(rows)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4).t())
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("cache", torch.zeros(3), persistent=False)
        self.register_parameter("bias", None)
        self.anchors = torch.empty(0)


class DetectionModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(Conv(4), Conv(5), Head())
        self.names = dict(NAMES)
        self.yaml = {"nc": 2, "backbone": [[-1, 1, "Conv", [64, 3, 2]]], "scale": "n"}
        self.stride = torch.tensor([8.0, 16.0, 32.0])
        self.args: Any = None


class Settings:
    """Stands for any class of the package that a file may mention."""


class Shell:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {MARKER}",)


MARKER = Path()


@pytest.fixture(autouse=True)
def marker(tmp_path: Path) -> Iterator[None]:
    """Fails a test whose file got anything run."""
    global MARKER
    MARKER = tmp_path / "marker"
    yield
    assert not MARKER.exists()


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    def save_as_ultralytics(path: Path = tmp_path / "yolo.pt", **content: Any) -> Path:
        classes = {"ultralytics.nn.tasks": [DetectionModel, Settings], "ultralytics.nn.modules": [Conv, Head]}
        with monkeypatch.context() as patch:
            for parent in ("ultralytics", "ultralytics.nn"):
                patch.setitem(sys.modules, parent, ModuleType(parent))
            for module_name, members in classes.items():
                module = ModuleType(module_name)
                patch.setitem(sys.modules, module_name, module)
                for member in members:
                    patch.setattr(module, member.__name__, member, raising=False)
                    patch.setattr(member, "__module__", module_name)
            torch.save(content, path)
        assert "ultralytics" not in sys.modules
        return path

    return save_as_ultralytics


def assert_holds(checkpoint: Checkpoint, model: nn.Module) -> None:
    expected = model.state_dict()
    assert set(checkpoint.tensors) == set(expected)
    for name, tensor in checkpoint.tensors.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name


def test_tensors_and_facts_come_out_without_the_package(save: Save) -> None:
    model = DetectionModel().half()
    checkpoint = read_checkpoint(
        save(model=model, ema=None, train_args={"imgsz": 640, "lr0": 0.01}, version="8.3.0", optimizer=None)
    )
    assert checkpoint.format == "yolov8-pickle"
    assert (checkpoint.weights, checkpoint.available_weights) == ("model", ("model",))
    assert checkpoint.stripped == ()
    assert_holds(checkpoint, model)
    assert checkpoint.tensors["model.0.conv.weight"].dtype == torch.float16
    assert dict(checkpoint.metadata) == {
        "names": {"0": "person", "1": "car"},
        "yaml": {"nc": 2, "backbone": [[-1, 1, "Conv", [64, 3, 2]]], "scale": "n"},
        "stride": [8.0, 16.0, 32.0],
        "train_args": {"imgsz": 640, "lr0": 0.01},
        "version": "8.3.0",
    }
    assert "ultralytics" not in sys.modules


def test_the_average_is_preferred_and_the_raw_model_can_be_asked_for(save: Save) -> None:
    raw, average = DetectionModel(), DetectionModel()
    average.names = {0: "cat", 1: "dog"}
    path = save(model=raw, ema=average)
    chosen = read_checkpoint(path)
    assert (chosen.weights, chosen.available_weights) == ("ema", ("ema", "model"))
    assert_holds(chosen, average)
    assert chosen.metadata["names"] == {"0": "cat", "1": "dog"}
    assert_holds(read_checkpoint(path, weights="model"), raw)


def test_the_digest_is_that_of_the_same_tensors_in_a_plain_file(save: Save, tmp_path: Path) -> None:
    model = DetectionModel()
    torch.save(model.state_dict(), tmp_path / "plain.pth")
    plain = read_checkpoint(tmp_path / "plain.pth")
    assert read_checkpoint(save(model=model)).tensor_digest == plain.tensor_digest


def test_unknown_classes_and_calls_stay_inert(save: Save) -> None:
    model = DetectionModel()
    settings = Settings()
    settings.__dict__["task"] = "detect"
    model.args = settings
    model.__dict__["hook"] = Shell()
    checkpoint = read_checkpoint(save(model=model, callbacks=[Shell(), Path("/tmp"), {1, 2}], ema=Shell()))
    assert checkpoint.available_weights == ("model",)
    assert_holds(checkpoint, model)


def test_a_tensor_made_by_a_foreign_call_is_refused_by_name(save: Save) -> None:
    model = DetectionModel()
    model._buffers["evil"] = Shell()  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match=r"tensor evil is stored as posix\.system"):
        read_checkpoint(save(model=model))


def test_a_package_name_alone_does_not_make_a_file_readable(save: Save, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no tensors"):
        read_checkpoint(save(model=Settings(), extra=Shell()))


def rewrite(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            if (changed := change(name, data)) is not None:
                archive.writestr(name, changed)


@pytest.mark.parametrize("kind", ["missing", "short", "big-endian"])
def test_damaged_storages_are_one_clear_line(save: Save, kind: str) -> None:
    path = save(model=DetectionModel())

    def damage(name: str, data: bytes) -> bytes | None:
        if name.endswith("/byteorder"):
            return b"big" if kind == "big-endian" else data
        if "/data/" not in name or kind == "big-endian":
            return data
        return None if kind == "missing" else data[:-1]

    rewrite(path, damage)
    with pytest.raises(CheckpointError, match=r"truncated or damaged|is not \d+ x|big-endian"):
        read_checkpoint(path)


def test_a_flipped_bit_is_noticed(save: Save) -> None:
    path = save(model=DetectionModel())
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("yolo/data.pkl")
    # inside the pickle, in a class name, so that torch refuses the file and the archive's check sum is wrong
    data[data.index(b"DetectionModel", entry.header_offset)] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"truncated or damaged: its entry yolo/data\.pkl"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("offset", "shape", "stride"),
    [(0, (5,), (1,)), (2, (3,), (1,)), (0, (2, 3), (2, 1)), (-1, (1,), (1,)), (0, (2,), (-1,)), (0, (1 << 62,), (0,))],
)
def test_a_tensor_cannot_reach_outside_its_storage(
    offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    assert not checkpoint_yolo._fits(offset, shape, stride, numel=4)


def test_a_tensor_may_use_all_of_its_storage() -> None:
    assert checkpoint_yolo._fits(0, (2, 2), (2, 1), numel=4)
    assert checkpoint_yolo._fits(4, (0, 7), (7, 1), numel=4)


def test_modules_nested_without_end_are_refused(save: Save) -> None:
    model = DetectionModel()
    model.model.add_module("self", model)
    with pytest.raises(CheckpointError, match="nested deeper or larger"):
        read_checkpoint(save(model=model))


def test_shared_parameters_that_unfold_without_end_are_refused(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes per module can name one dictionary of a thousand tensors again."""
    model = DetectionModel()
    model.model = nn.Sequential(*[nn.Module() for _ in range(8)])
    shared = {f"p{index}": nn.Parameter(torch.ones(1)) for index in range(8)}
    for module in model.model:
        module._parameters = shared
    monkeypatch.setattr(checkpoint_yolo, "MAX_TENSORS", 60)
    with pytest.raises(CheckpointError, match="unfolds to more than 60 tensors"):
        read_checkpoint(save(model=model))


def test_facts_that_unfold_without_end_are_refused(save: Save) -> None:
    model = DetectionModel()
    bomb: list[Any] = ["x"]
    for _ in range(30):
        bomb = [bomb, bomb]
    model.yaml = {"bomb": bomb}
    with pytest.raises(CheckpointError, match="facts beside its tensors"):
        read_checkpoint(save(model=model))


def op(text: str) -> bytes:
    return b"\x80\x02" + text.encode("latin-1") + b"."


@pytest.mark.parametrize(
    "stream",
    [
        op("cos\nsystem\n(S'touch marker'\ntR"),  # string opcode of protocol 0
        op("(S'touch marker'\nios\nsystem\n"),  # INST
        op("(cos\nsystem\nX\x01\x00\x00\x00ao"),  # OBJ
        op("\x82\x01"),  # EXT1: the registry of copyreg
        op("\x97"),  # NEXT_BUFFER
        op("K\x01K\x02R"),  # a call of a number
        op("cbuiltins\neval\n)R)R"),  # a call of the result of a call
        op("cbuiltins\neval\nN" + "b"),  # attributes for a name
        op("K\x01Nb"),  # attributes for a number
        op("K\x01Q"),  # a persistent id that is no storage
        op("K\x01K\x02K\x03s"),  # an item of a number
        op("R"),
        op("u"),
        op("h\x05"),
        op("K\x01K\x02"),
        b"\x80\x02",
        b"",
        b"\xff" * 100,
        pickle.dumps({"a": 1}, protocol=4),
        pickle.dumps({"a": 1}, protocol=5),
    ],
)
def test_streams_that_torch_save_does_not_write_are_refused(stream: bytes) -> None:
    with pytest.raises(CheckpointError, match="damaged or of an unknown kind"):
        read_records(stream, "hostile.pt")


def test_calls_become_records() -> None:
    record = read_records(op("cbuiltins\neval\nX\x03\x00\x00\x001+1\x85RN" + "b"), "x.pt")
    assert isinstance(record, Record)
    assert (record.path, record.args, record.state) == ("builtins.eval", ("1+1",), None)


def test_deep_nesting_used_as_a_key_does_not_crash() -> None:
    assert read_records(op("}" + ")" + "\x85" * 300_000 + "Ns"), "deep.pt") == {}


def test_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_pickle, "MAX_OPCODES", 100)
    with pytest.raises(CheckpointError, match="more than 100 operations"):
        read_records(op("N0" * 200), "long.pt")
    monkeypatch.setattr(checkpoint_pickle, "MAX_RECORD_BYTES", 100)
    with pytest.raises(CheckpointError, match="vtk reads up to 100"):
        read_records(op("N0" * 200), "long.pt")


def test_a_memo_index_of_four_billion_allocates_nothing() -> None:
    assert read_records(op("Nr\xff\xff\xff\x7f"), "memo.pt") is None
