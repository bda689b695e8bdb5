"""The report: true figures, every name as text, nothing from elsewhere, and pictures with what was found on them."""

import base64
import io
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vtk.cli.main import main
from vtk.errors import ImageError
from vtk.preprocess.decode import DecodeOptions
from vtk.profile import Profile
from vtk.sinks.base import OutputFolder, Row, read_file
from vtk.sinks.report import ReportSink, add_times, spread
from vtk.sources.base import Picture, frame

HOSTILE = '<script src="http://evil">alert(1)</script>&amp;"\' onload=x'
VOID = ("meta", "img", "br", "!doctype")


class Reading(HTMLParser):
    """Checks that tags nest, and gathers text and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def row(index: int, name: str, *found: tuple[str, float]) -> Row:
    detections = [
        {"class_id": 0, "category_id": 1, "name": label, "score": score, "bbox_xyxy": [2.0, 2.0, 20.0, 12.0]}
        for label, score in found
    ]
    return {
        "index": index,
        "path": f"in/{name}",
        "file_name": name,
        "width": 40,
        "height": 20,
        "detections": detections,
    }


def gray(row: Row) -> Picture:
    return frame(np.full((20, 40, 3), 90, np.uint8), {})


def report(tmp_path: Path, rows: list[Row], title: str = "deim n", reread: Any = gray) -> tuple[str, Reading]:
    def iterate() -> Iterator[Row]:
        return iter(rows)

    ReportSink(OutputFolder(tmp_path), title, DecodeOptions(), reread).finish(len(rows), iterate)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    reading = Reading()
    reading.feed(page)
    reading.close()
    assert reading.open == []
    return page, reading


def table(reading: Reading, first: str) -> list[str]:
    """What is written beside a name."""
    place = reading.words.index(first)
    return [word for word in reading.words[place + 1 :] if word.strip()][:1]


def test_the_figures_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = [
        row(0, "a.jpg", ("cat", 0.97), ("dog", 0.31)),
        row(1, "b.jpg"),
        row(3, "c.jpg", ("cat", 1.0), ("cat", 0.33)),
    ]
    _, reading = report(tmp_path, rows)
    assert table(reading, "cat") == ["3"]
    assert table(reading, "dog") == ["1"]
    assert table(reading, "0.95 – 1.00") == ["2"]
    assert table(reading, "0.30 – 0.35") == ["2"]
    assert table(reading, "0.50 – 0.55") == ["0"]
    facts = [reading.words[reading.words.index(name) - 1] for name in ("pictures", "found", "pictures without any")]
    assert facts == ["3", "4", "1"]


def test_hostile_names_are_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    ledger = {"index": 1, "file_name": HOSTILE, "reason": HOSTILE, "message": HOSTILE}
    (tmp_path / "ledger.jsonl").write_text(json.dumps(ledger) + "\n")
    page, reading = report(tmp_path, [row(0, HOSTILE, (HOSTILE, 0.5))], title=HOSTILE)
    assert {tag for tag, _ in reading.tags} & {"script", "link", "iframe", "object", "base", "form"} == set()
    for _, attributes in reading.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert all((attributes.get(name) or "data:").startswith("data:") for name in ("src", "href"))
    assert reading.words.count(HOSTILE) >= 6, "title, head, class, tile, and three cells of the ledger"
    assert re.search(r"default-src 'none'", page)
    assert "url(" not in page.split("</style>")[0]


def test_the_ledger_is_there_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    with (tmp_path / "ledger.jsonl").open("w") as stream:
        for index in range(250):
            reason = "truncated" if index % 5 else "empty"
            line = {"index": index, "file_name": f"bad{index}.jpg", "reason": reason, "message": "It is cut."}
            stream.write(json.dumps(line) + "\n")
    page, reading = report(tmp_path, [])
    assert "bad199.jpg" in reading.words
    assert "bad200.jpg" not in reading.words
    assert "By reason: truncated 200, empty 50. Shown: 200 of 250, all in ledger.jsonl." in reading.words
    assert "250" in reading.words
    assert page.count("<tr>") == 201


def test_tiles_show_what_was_found(tmp_path: Path) -> None:
    page, _ = report(tmp_path, [row(0, "a.jpg", ("cat", 0.9)), row(1, "b.jpg")])
    pictures = [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in jpegs(page)]
    assert [picture.shape for picture in pictures] == [(20, 40, 3)] * 2
    assert np.ptp(pictures[0].astype(int)) > 100, "a box is drawn"
    assert np.abs(pictures[1].astype(int) - 90).max() <= 3


def jpegs(page: str) -> list[str]:
    return re.findall(r'src="data:image/jpeg;base64,([A-Za-z0-9+/=]+)"', page)


def test_a_picture_that_is_gone_is_a_gap(tmp_path: Path) -> None:
    page, reading = report(tmp_path, [row(0, "gone.jpg", ("cat", 0.9))], reread=read_file)
    assert jpegs(page) == []
    assert "gone.jpg" in reading.words
    assert "not shown" in reading.words


def test_memory_is_bounded_by_the_sheet(tmp_path: Path) -> None:
    read: list[str] = []

    def reread(row: Row) -> Picture:
        read.append(row["file_name"])
        if row["file_name"] == "0.jpg":
            raise ImageError("unreadable", "It is gone.")
        return gray(row)

    page, _ = report(tmp_path, [row(index, f"{index}.jpg") for index in range(1000)], reread=reread)
    assert len(read) == 60
    assert len(jpegs(page)) == 59
    numbers = [int(name[:-4]) for name in read]
    assert numbers == sorted(numbers)
    assert max(np.diff(numbers)) <= 17
    assert numbers[-1] >= 980


@given(st.integers(0, 5000), st.integers(1, 100))
def test_places_are_spread(count: int, most: int) -> None:
    places = sorted(spread(count, most))
    assert len(places) == min(count, most)
    assert all(0 <= place < count for place in places)
    if len(places) > 1:
        gaps = np.diff(places)
        assert gaps.max() - gaps.min() <= 1


def test_times_of_all_runs_are_added(tmp_path: Path) -> None:
    profile = Profile()
    profile.stages["infer"].busy = 1.5
    add_times(OutputFolder(tmp_path), profile, 2.0)
    add_times(OutputFolder(tmp_path), profile, 2.25)
    _, reading = report(tmp_path, [])
    assert table(reading, "infer") == ["3.00 s"]
    assert "Busy time, summed over threads; 4.25 s by the clock." in reading.words


@pytest.mark.parametrize("task", ["detect", "embed", "classify"])
def test_every_task_has_a_report(
    stub: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save_picture: Callable[..., Path],
    task: str,
) -> None:
    from contextlib import nullcontext

    model = stub.StubModel(task)
    monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: model.bundle)
    monkeypatch.setattr("vtk.predictor.open_predictor", lambda bundle, **options: nullcontext(model))
    save_picture(tmp_path / "in/a.png")
    (tmp_path / "in/bad.png").write_bytes(b"x")
    out = tmp_path / "out"
    assert main(["run", "b", str(tmp_path / "in"), "-o", str(out), "--format", "html", "--keep-going"]) == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert len(jpegs(page)) == 1
    assert "bad.png" in page
    assert "stub stub-s" in page
    assert ("Classes" in page) == (task != "embed")
    assert "infer" in page
    times = json.loads((out / "profile.json").read_text())
    assert times["busy"]["decode"] > 0
