"""`vtk run` over everything that holds pictures, from the command line to the rows."""

import io
import json
import sys
import tarfile
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vtk.cli.main import main


@pytest.fixture(autouse=True)
def open_stub(stub: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stub in the place of every bundle."""
    model = stub.StubModel("detect")
    monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: model.bundle)
    monkeypatch.setattr("vtk.predictor.open_predictor", lambda bundle, **options: nullcontext(model))
    return model


def png(seed: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 30, 3), np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def run(out: Path, *inputs: object) -> int:
    return main(["run", "bundle", *map(str, inputs), "-o", str(out)])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def scores(out: Path) -> list[float]:
    """The stub's score is the mean of the picture: equal pictures have equal ones."""
    return [row["detections"][0]["score"] for row in rows(out / "results.jsonl")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for seed in range(5):
        (tmp_path / f"in/{seed}.png").write_bytes(png(seed))
    return tmp_path / "in"


@pytest.fixture
def wanted(folder: Path, tmp_path: Path) -> list[float]:
    assert run(tmp_path / "plain", folder) == 0
    return scores(tmp_path / "plain")


def save_tar(path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for seed in range(5):
            info = tarfile.TarInfo(f"{seed:03d}.png")
            info.size = len(png(seed))
            archive.addfile(info, io.BytesIO(png(seed)))
    return path


def save_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for seed in range(5):
            archive.writestr(f"{seed}.png", png(seed))
    return path


def save_table(path: Path) -> Path:
    pq.write_table(pa.table({"pic": [png(seed) for seed in range(5)], "uid": list("abcde"), "raw": [b"x"] * 5}), path)
    return path


def test_archives_and_tables_give_the_results_of_the_folder(
    tmp_path: Path, wanted: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    sources = {
        "tar": [save_tar(tmp_path / "a.tar")],
        "gz": [save_tar(tmp_path / "a.tar.gz", "w:gz")],
        "zip": [save_zip(tmp_path / "a.zip")],
        "parquet": [save_table(tmp_path / "a.parquet"), "--image-column", "pic", "--id-column", "uid"],
    }
    for name, inputs in sources.items():
        assert run(tmp_path / name, *inputs) == 0
        assert scores(tmp_path / name) == wanted
    assert [row["key"] for row in rows(tmp_path / "tar/results.jsonl")] == [f"{seed:03d}" for seed in range(5)]
    assert [row["id"] for row in rows(tmp_path / "parquet/results.jsonl")] == list("abcde")
    assert run(tmp_path / "table", tmp_path / "a.parquet") == 2
    assert "--image-column" in capsys.readouterr().err


def test_formats_that_need_the_picture_find_it_in_an_archive(tmp_path: Path) -> None:
    source = save_tar(tmp_path / "a.tar")
    assert run(tmp_path / "out", source, "--format", "annotated,crops,coco,yolo") == 0
    assert sorted(path.name for path in (tmp_path / "out/annotated/a.tar").iterdir()) == [
        f"{seed:03d}.png" for seed in range(5)
    ]
    images = json.loads((tmp_path / "out/coco.json").read_text())["images"]
    assert [image["file_name"] for image in images] == [f"a.tar/{seed:03d}.png" for seed in range(5)]


@pytest.mark.parametrize(("flags", "end"), [((), b"\n"), (("-0",), b"\0"), (("--null",), b"\0")])
def test_paths_on_stdin(
    folder: Path,
    tmp_path: Path,
    wanted: list[float],
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    end: bytes,
) -> None:
    """Relative to the working folder; with NUL, names may hold line feeds."""
    names = [f"in/{seed}.png" for seed in range(5)]
    if flags:
        (folder / "4.png").rename(folder / "new\nline.png")
        names[-1] = "in/new\nline.png"
    monkeypatch.chdir(tmp_path)
    data = end.join(name.encode() for name in names) + end
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert run(tmp_path / "out", "-", *flags) == 0
    assert scores(tmp_path / "out") == wanted
    assert [row["path"] for row in rows(tmp_path / "out/results.jsonl")] == names


def test_stdin_may_name_archives_and_nothing_at_all(
    tmp_path: Path, wanted: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_zip(tmp_path / "a.zip")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(f"{path}\r\n\r\n".encode())))
    assert run(tmp_path / "out", "-") == 0
    assert scores(tmp_path / "out") == wanted
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    assert run(tmp_path / "none", "-") == 2
    assert "No pictures found" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert run(tmp_path / "closed", "-") == 2
    assert "no stdin" in capsys.readouterr().err


def test_damaged_members_cost_the_exit_code_and_nothing_else(tmp_path: Path) -> None:
    """Case V54, inside an archive."""
    good = [("0.png", png(0)), ("1.png", png(1))]
    bad = [("cut.png", png(2)[:100]), ("empty.png", b""), ("page.jpg", b"<html>not found</html>")]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, data in (good[0], *bad, good[1]):
            archive.writestr(name, data)
    assert run(tmp_path / "out", tmp_path / "a.zip") == 1
    assert [row["file_name"] for row in rows(tmp_path / "out/results.jsonl")] == ["a.zip/0.png", "a.zip/1.png"]
    assert {row["file_name"]: row["reason"] for row in rows(tmp_path / "out/ledger.jsonl")} == {
        "a.zip/cut.png": "truncated",
        "a.zip/empty.png": "empty",
        "a.zip/page.jpg": "not_an_image",
    }


def test_a_stopped_job_goes_on_inside_an_archive(tmp_path: Path, wanted: list[float], open_stub: Any) -> None:
    """Case V57: rows that are there are not computed again, whatever the source."""
    for name, source in {"tar": save_tar(tmp_path / "a.tar.gz", "w:gz"), "zip": save_zip(tmp_path / "a.zip")}.items():
        assert run(tmp_path / name, source) == 0
        log = tmp_path / name / "results.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:3]) + lines[3][:10])
        open_stub.calls.clear()
        assert run(tmp_path / name, source) == 0
        assert sum(open_stub.calls) == 2
        assert scores(tmp_path / name) == wanted


def test_videos_with_a_stride(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "clip.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        for number in range(11):
            pixels = np.full((24, 32, 3), 40 + 20 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    assert run(tmp_path / "out", tmp_path / "clip.mp4", "--stride", "5", "--format", "annotated") == 0
    found = rows(tmp_path / "out/results.jsonl")
    assert [(row["frame"], row["time_s"], row["output"]) for row in found] == [
        (0, 0.0, "clip.mp4/000000"),
        (5, 0.5, "clip.mp4/000005"),
        (10, 1.0, "clip.mp4/000010"),
    ]
    assert [(row["width"], row["height"]) for row in found] == [(32, 24)] * 3
    assert np.diff(scores(tmp_path / "out")).min() > 0.3
    assert (tmp_path / "out/annotated/clip.mp4/000005.png").exists()
    assert run(tmp_path / "out", tmp_path / "clip.mp4", "--stride", "3", "--format", "annotated") == 2
    assert "started differently" in capsys.readouterr().err


def test_stores_and_their_limits(
    tmp_path: Path, wanted: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = pytest.importorskip("fsspec").filesystem("memory")
    monkeypatch.setattr(type(store), "store", {})
    for seed in range(5):
        store.pipe_file(f"/bucket/{seed}.png", png(seed))
    assert run(tmp_path / "out", "memory://bucket") == 0
    assert scores(tmp_path / "out") == wanted
    assert run(tmp_path / "web", "https://example.invalid/x.png") == 2
    assert "--allow-http" in capsys.readouterr().err
    assert not (tmp_path / "web").exists()


@pytest.mark.parametrize("flag", ["--stride=0", "--stride=x"])
def test_bad_numbers_are_told(tmp_path: Path, folder: Path, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path / "out", folder, flag)
    assert "whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stride", "2"], "--stride is for videos"),
        (["--image-column", "x"], "--image-column is for Parquet"),
        (["--id-column", "x"], "--id-column is for Parquet"),
        (["--null"], "paths on stdin"),
    ],
)
def test_options_without_effect_are_refused(
    tmp_path: Path, folder: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for inputs in ([folder], ["--watch", folder]):
        assert run(tmp_path / "out", *inputs, *flags) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
