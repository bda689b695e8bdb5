"""The whole job with a stub model: isolation, order, batches, resume, memory (cases V54, V56, V57, V58, V59)."""

import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
import weakref
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vtk.errors import OutputError, UsageError
from vtk.inputs import expand
from vtk.run import Summary, run_job

STUB_SCRIPT = Path(__file__).parent / "data" / "stub_model.py"
SavePicture = Callable[..., Path]


def run(stub: ModuleType, source: Path, out: Path, model: Any = None, **changes: Any) -> Summary:
    options = replace(stub.stub_options(), **changes)
    return run_job(
        model or stub.StubModel(), expand([str(source)], exclude=out), out, options, lambda done, failed: None
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def reasons(out: Path) -> dict[str, str]:
    return {row["file_name"]: row["reason"] for row in rows(out / "ledger.jsonl")}


def jpeg_bytes(size_wh: tuple[int, int] = (64, 48)) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def png_bomb(side: int) -> bytes:
    """A one-bit PNG of side x side pixels in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    body = zlib.compress(bytes((side // 8 + 1) * side), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def add_bad_files(root: Path) -> dict[str, str]:
    """Twelve files that cannot be pictures, and the reason each must be given."""
    jpeg = jpeg_bytes()
    html = b"<!DOCTYPE html><html><body>404</body></html>"
    (root / "folder.jpg.d").mkdir(parents=True)
    bad = {
        "truncated.jpg": (jpeg[: len(jpeg) // 2], "truncated"),
        "truncated 你好.jpg": (jpeg[: len(jpeg) - 200], "truncated"),
        "zero.jpg": (b"", "empty"),
        "folder.jpg.d/zero #2.png": (b"", "empty"),
        "page.jpg": (html, "not_an_image"),
        f"{'long' * 50}.jpg": (html, "not_an_image"),
        "text.png": (b"just words\n" * 20, "not_an_image"),
        "bomb.png": (png_bomb(10_000), "too_large"),
        "bigger bomb.png": (png_bomb(14_000), "too_large"),
        "document.jpeg": (b"%PDF-1.7 and so on", "unsupported"),
    }
    for name, (data, _) in bad.items():
        (root / name).write_bytes(data)
    (root / "dangling.jpg").symlink_to(root / "nowhere.jpg")
    os.mkfifo(root / "pipe.jpg")
    return {name: reason for name, (_, reason) in bad.items()} | {
        "dangling.jpg": "unreadable",
        "pipe.jpg": "unreadable",
    }


@pytest.fixture
def mixed_folder(tmp_path: Path, save_picture: SavePicture) -> tuple[Path, dict[str, str]]:
    """100 good pictures, some with odd names or a wrong suffix, among 12 bad ones."""
    root = tmp_path / "in"
    for index in range(97):
        save_picture(root / f"part{index % 3}" / f"{index:03}.{'jpg' if index % 2 else 'png'}", seed=index)
    save_picture(root / "你好 é#.jpg", seed=97)
    save_picture(root / f"{'n' * 200}.png", seed=98)
    save_picture(tmp_path / "x.png", seed=99).rename(root / "a png called.jpg")
    return root, add_bad_files(root)


def test_a_folder_of_good_and_bad_files(
    stub: ModuleType, tmp_path: Path, mixed_folder: tuple[Path, dict[str, str]]
) -> None:
    """Cases V54, V58, V59: 100 results, 12 ledger rows, each with its reason."""
    source, bad = mixed_folder
    out = tmp_path / "out"
    summary = run(stub, source, out, formats=("jsonl", "yolo", "coco", "annotated"))
    assert (summary.num_results, summary.num_failed, summary.complete) == (100, 12, True)
    assert reasons(out) == bad
    assert all(row["message"].endswith(".") or row["message"] for row in rows(out / "ledger.jsonl"))
    assert len(list((out / "yolo/labels").rglob("*.txt"))) == 100
    assert len(list((out / "annotated").rglob("*.*"))) == 100
    assert not (out / ".tmp").exists()
    dataset = json.loads((out / "coco.json").read_text())
    assert len(dataset["images"]) == 100
    assert {image["id"] for image in dataset["images"]} == {row["index"] + 1 for row in rows(out / "results.jsonl")}


def test_rows_are_in_input_order_whatever_the_threads_do(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    for index in range(30):
        save_picture(tmp_path / f"in/{index:02}.png", seed=index)

    class Uneven(stub.StubModel):  # type: ignore[misc, name-defined]
        def prepare(self, picture: Any) -> Any:
            time.sleep(0.02 * (picture[0, 0, 0] % 3))
            return super().prepare(picture)

    plan = expand([str(tmp_path / "in")])
    run(stub, tmp_path / "in", tmp_path / "out", Uneven(), workers=8)
    found = rows(tmp_path / "out/results.jsonl")
    assert [row["index"] for row in found] == list(range(30))
    assert [row["file_name"] for row in found] == [item.file_name for item in plan.items]
    for item, row in zip(plan.items, found, strict=True):
        model = stub.StubModel()
        with Image.open(item.path) as picture:
            expected = model.infer([model.prepare(np.asarray(picture.convert("RGB"))).tensor])[0]["mean"][0]
        assert row["detections"][0]["score"] == pytest.approx(float(expected), abs=1e-7)


def test_the_batch_is_full_even_with_bad_files_between(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    """Case V58: after a bad item the next batch works, and is whole."""
    for index in range(12):
        save_picture(tmp_path / f"in/{index:02}.png", seed=index)
        (tmp_path / f"in/{index:02}x.png").write_bytes(b"broken")
    model = stub.StubModel()
    summary = run(stub, tmp_path / "in", tmp_path / "out", model)
    assert model.calls == [4, 4, 4]
    assert (summary.num_results, summary.num_failed) == (12, 12)


def test_only_bad_files(stub: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for index in range(50):
        (tmp_path / f"in/{index:02}.png").write_bytes(b"broken")
    model = stub.StubModel()
    summary = run(stub, tmp_path / "in", tmp_path / "out", model, formats=("jsonl", "coco"))
    assert (summary.num_results, summary.num_failed, summary.complete) == (0, 50, True)
    assert model.calls == []
    assert json.loads((tmp_path / "out/coco.json").read_text())["annotations"] == []


def test_a_failing_engine_or_postprocess_costs_one_picture(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    for index in range(9):
        save_picture(tmp_path / f"in/{index}.png", size_wh=(20 + index, 16), seed=index)

    class Fragile(stub.StubModel):  # type: ignore[misc, name-defined]
        poison: Any = None

        def prepare(self, picture: Any) -> Any:
            prepared = super().prepare(picture)
            if picture.shape[1] == 22:
                self.poison = prepared.tensor
            return prepared

        def infer(self, tensors: Any) -> Any:
            if any(tensor is self.poison for tensor in tensors):
                raise RuntimeError("kernel failed")
            return super().infer(tensors)

        def finish(self, row: Any, geometry: Any, **options: Any) -> Any:
            if geometry.source_hw[1] == 25:
                raise ZeroDivisionError("division by zero")
            return super().finish(row, geometry, **options)

    summary = run(stub, tmp_path / "in", tmp_path / "out", Fragile())
    assert reasons(tmp_path / "out") == {"2.png": "engine", "5.png": "internal"}
    assert (summary.num_results, summary.complete) == (7, True)


def test_numbers_that_are_not_finite_are_failures_not_invalid_json(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    save_picture(tmp_path / "in/a.png")

    class Broken(stub.StubModel):  # type: ignore[misc, name-defined]
        def infer(self, tensors: Any) -> Any:
            return [{"mean": np.array([np.inf], np.float32)} for _ in tensors]

    run(stub, tmp_path / "in", tmp_path / "out", Broken())
    assert reasons(tmp_path / "out") == {"a.png": "engine"}


def test_max_errors_stops_cleanly_and_can_be_raised(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    for index in range(20):
        save_picture(tmp_path / f"in/{index:02}.png", seed=index)
        (tmp_path / f"in/{index:02}x.png").write_bytes(b"broken")
    summary = run(stub, tmp_path / "in", tmp_path / "out", max_errors=2)
    assert (summary.num_failed, summary.complete) == (3, False)
    assert len(rows(tmp_path / "out/ledger.jsonl")) == 3
    again = run(stub, tmp_path / "in", tmp_path / "out", max_errors=2)
    assert (again.num_new, again.complete) == (0, False)
    last = run(stub, tmp_path / "in", tmp_path / "out", max_errors=None)
    assert (last.num_results, last.num_failed, last.complete) == (20, 20, True)


def test_a_second_run_does_nothing_and_does_not_append(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    """Case V55."""
    for index in range(5):
        save_picture(tmp_path / f"in/{index}.png", seed=index)
    out = tmp_path / "out"
    formats = ("jsonl", "yolo", "coco", "annotated")
    run(stub, tmp_path / "in", out, formats=formats)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    model = stub.StubModel()
    assert run(stub, tmp_path / "in", out, model, formats=formats).num_new == 0
    assert model.calls == []
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"}


def kill_at(count: int, task: str, source: Path, out: Path, formats: str) -> None:
    """Run the job in a process and kill -9 it when `count` results are there."""
    command = [sys.executable, str(STUB_SCRIPT), task, str(source), str(out), "0.02", formats]
    with subprocess.Popen(command) as process:
        results = out / "results.jsonl"
        while not results.exists() or results.read_bytes().count(b"\n") < count:
            assert process.poll() is None, "the job ended before it could be killed"
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)


def go_on(task: str, source: Path, out: Path, formats: str) -> int:
    """Run the same job to its end; how many pictures the model saw."""
    command = [sys.executable, str(STUB_SCRIPT), task, str(source), str(out), "0", formats]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_killed_job_does_only_the_rest(
    stub: ModuleType, tmp_path: Path, mixed_folder: tuple[Path, dict[str, str]]
) -> None:
    """Case V57: kill -9 after 50 of 112, run again: 112 unique rows, and only what had no row is computed."""
    source, bad = mixed_folder
    out = tmp_path / "out"
    kill_at(50, "detect", source, out, "jsonl,yolo")
    done = len(rows(out / "results.jsonl"))
    assert 50 <= done < 100
    assert go_on("detect", source, out, "jsonl,yolo") == 100 - done
    found = rows(out / "results.jsonl")
    assert len({row["file_name"] for row in found}) == len(found) == 100
    assert reasons(out) == bad
    labels = list((out / "yolo/labels").rglob("*.txt"))
    assert len(labels) == 100
    assert all(label.read_text().endswith("\n") for label in labels)


def test_a_killed_embedding_job_has_every_vector_once(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    """Case V57, where results also go through a shared spool."""
    for index in range(40):
        save_picture(tmp_path / f"in/{index:02}.png", seed=index)
    out, whole = tmp_path / "out", tmp_path / "whole"
    kill_at(15, "embed", tmp_path / "in", out, "parquet,npz")
    assert not (out / "embeddings.parquet").exists()
    done = len(rows(out / "results.jsonl"))
    assert go_on("embed", tmp_path / "in", out, "parquet,npz") == 40 - done
    run(stub, tmp_path / "in", whole, stub.StubModel("embed"), formats=("parquet",), patches=True)
    assert pq.read_table(out / "embeddings.parquet").equals(pq.read_table(whole / "embeddings.parquet"))
    assert len(list((out / "npz").iterdir())) == 40


def test_a_job_does_not_go_on_with_other_labels(stub: ModuleType, tmp_path: Path, save_picture: SavePicture) -> None:
    """The same graphs exported again with `--labels` would give one file of results two names for a class."""
    save_picture(tmp_path / "in/a.jpg")
    run(stub, tmp_path / "in", tmp_path / "out")
    model = stub.StubModel()
    labels = tuple(replace(label, name=label.name.upper()) for label in model.bundle.manifest.labels)
    model.bundle = replace(model.bundle, manifest=replace(model.bundle.manifest, labels=labels))
    with pytest.raises(UsageError, match=r"started differently \(labels: "):
        run(stub, tmp_path / "in", tmp_path / "out", model)


def test_a_full_disk_stops_the_job_and_it_goes_on_later(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(12):
        save_picture(tmp_path / f"in/{index:02}.png", seed=index)
    replace_file = Path.replace

    def full(self: Path, target: Path) -> Path:
        if target.name == "06.txt":
            raise OSError(28, "No space left on device")
        return replace_file(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        run(stub, tmp_path / "in", tmp_path / "out", formats=("jsonl", "yolo"))
    assert len(rows(tmp_path / "out/results.jsonl")) == 4
    assert rows(tmp_path / "out/ledger.jsonl") == []
    monkeypatch.undo()
    assert run(stub, tmp_path / "in", tmp_path / "out", formats=("jsonl", "yolo")).num_results == 12


def test_an_interrupt_keeps_what_is_done(stub: ModuleType, tmp_path: Path, save_picture: SavePicture) -> None:
    for index in range(12):
        save_picture(tmp_path / f"in/{index:02}.png", seed=index)

    class Interrupted(stub.StubModel):  # type: ignore[misc, name-defined]
        def infer(self, tensors: Any) -> Any:
            if len(self.calls) == 2:
                raise KeyboardInterrupt
            return super().infer(tensors)

    with pytest.raises(KeyboardInterrupt):
        run(stub, tmp_path / "in", tmp_path / "out", Interrupted(), formats=("jsonl", "yolo"))
    assert len(rows(tmp_path / "out/results.jsonl")) == 8
    assert not (tmp_path / "out/.tmp").exists()
    assert run(stub, tmp_path / "in", tmp_path / "out", formats=("jsonl", "yolo")).num_new == 4


def test_only_a_window_of_pictures_is_alive_at_any_moment(
    stub: ModuleType, tmp_path: Path, save_picture: SavePicture
) -> None:
    """Case V56: neither tensors nor results gather in memory, however small they are."""
    for index in range(120):
        save_picture(tmp_path / f"in/{index:03}.png", seed=index)
    options = stub.stub_options()
    window = 2 * options.batch + options.workers + options.batch  # running ahead, and the group in hand

    class Counting(stub.StubModel):  # type: ignore[misc, name-defined]
        tensors: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()
        results: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()
        most: ClassVar[list[int]] = []

        def prepare(self, picture: Any) -> Any:
            prepared = super().prepare(picture)
            self.tensors.add(prepared)
            return prepared

        def infer(self, tensors: Any) -> Any:
            self.most.append(max(len(self.tensors), len(self.results)))
            return super().infer(tensors)

        def finish(self, row: Any, geometry: Any, **options: Any) -> Any:
            result = super().finish(row, geometry, **options)
            self.results.add(result)
            return result

    summary = run(stub, tmp_path / "in", tmp_path / "out", Counting(), formats=("jsonl", "coco", "yolo"))
    assert summary.num_results == 120
    assert len(Counting.most) == 30
    assert max(Counting.most) <= window


def test_memory_is_flat_in_the_number_of_pictures(stub: ModuleType, tmp_path: Path, save_picture: SavePicture) -> None:
    """Case V56: 2,000 pictures, peak resident memory grows by less than 50 MB, no batch is larger than asked."""
    data = save_picture(tmp_path / "seed.png", size_wh=(64, 48)).read_bytes()
    few, many = tmp_path / "few", tmp_path / "many"
    for folder, count in ((few, 100), (many, 2000)):
        folder.mkdir()
        for index in range(count):
            (folder / f"{index:04}.png").write_bytes(data)
    model = stub.StubModel()
    options = replace(stub.stub_options(), formats=("jsonl", "coco", "yolo"))
    run_job(model, expand([str(few)]), tmp_path / "out1", options, lambda done, failed: None)
    resident = [resident_bytes()]
    plan = expand([str(many)])
    summary = run_job(model, plan, tmp_path / "out2", options, lambda done, failed: resident.append(resident_bytes()))
    resident.append(resident_bytes())
    assert summary.num_results == 2000
    assert len(resident) > 500
    assert max(resident) - resident[0] < 50 << 20
    assert max(model.calls) == 4


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")
