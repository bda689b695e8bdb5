"""One page that shows what a job has come to: `report.html`, complete in itself."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from PIL import Image

from vtk.errors import ImageError
from vtk.preprocess.decode import DecodeOptions
from vtk.profile import Profile
from vtk.sinks.base import OutputFolder, Reread, Row, Rows, Sink
from vtk.sinks.drawing import draw_detections
from vtk.sinks.report_page import Chart, Page, Tile, render

REPORT = "report.html"
LEDGER_FILE = "ledger.jsonl"
PROFILE_FILE = "profile.json"
MAX_TILES = 60
MAX_CLASSES = 40
MAX_FAILURES = 200
TILE_PIXELS = 240
NUM_BINS = 20


class ReportSink(Sink):
    """`report.html`: counts, histograms, the ledger, the time of each stage and a sheet of pictures.

    The sheet holds up to 60 pictures, evenly spread over the job, which are read again; one that is not to be had any
    more is a gap with its reason. title: what the page is called.
    """

    def __init__(self, out: OutputFolder, title: str, decode: DecodeOptions, reread: Reread) -> None:
        self.out = out
        self.title = title
        self.decode = decode
        self.reread = reread

    def finish(self, count: int, rows: Rows) -> None:
        statistics, shown = Statistics(), []
        places = spread(count, MAX_TILES)
        for place, row in enumerate(rows()):
            statistics.add(row)
            if place in places:
                shown.append(row)
        reasons = Counter(str(row["reason"]) for row in self._ledger())
        failures = [(row["file_name"], row["reason"], row["message"]) for row in islice(self._ledger(), MAX_FAILURES)]
        by_reason = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common())
        page = Page(
            title=self.title,
            facts=[*statistics.facts(), ("failed", f"{reasons.total():,}")],
            charts=[*statistics.charts(), _stages(self.out.root / PROFILE_FILE)],
            failures=failures,
            failures_note=f"By reason: {by_reason}. Shown: {len(failures)} of {reasons.total()}, all in {LEDGER_FILE}.",
            tiles=map(self._tile, shown),
        )
        with self.out.replace(REPORT, durable=True) as stream:
            for part in render(page):
                stream.write(part.encode())

    def _ledger(self) -> Iterator[Row]:
        path = self.out.root / LEDGER_FILE
        if path.exists():
            with path.open("rb") as stream:
                for line in stream:
                    yield json.loads(line)

    def _tile(self, row: Row) -> Tile:
        try:
            picture = Image.fromarray(self.reread(row).pixels(self.decode))
        except ImageError as error:
            return Tile(row["file_name"], str(error), None)
        draw_detections(picture, row.get("detections", []))
        picture.thumbnail((TILE_PIXELS, TILE_PIXELS))
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=80)
        names = Counter(item["name"] for item in _found(row))
        caption = ", ".join(f"{number} × {name}" for name, number in names.most_common(5))
        return Tile(row["file_name"], caption, stream.getvalue())


class Statistics:
    """Sums over all rows, one row at a time."""

    def __init__(self) -> None:
        self.pictures = 0
        self.empty = 0
        self.classes: Counter[str] = Counter()
        self.bins = [0] * NUM_BINS
        self.finds = False

    def add(self, row: Row) -> None:
        """Count what one row holds."""
        items = _found(row)
        self.pictures += 1
        self.empty += not items
        self.finds |= "dim" not in row
        for item in items:
            self.classes[item["name"]] += 1
            self.bins[min(NUM_BINS - 1, max(0, int(item["score"] * NUM_BINS)))] += 1

    def facts(self) -> list[tuple[str, str]]:
        """The totals."""
        facts = [("pictures", f"{self.pictures:,}")]
        if self.finds:
            facts += [("found", f"{self.classes.total():,}"), ("pictures without any", f"{self.empty:,}")]
        return facts

    def charts(self) -> list[Chart]:
        """How often each class was found, and with which scores."""
        best = self.classes.most_common(MAX_CLASSES)
        left = len(self.classes) - len(best)
        note = f"{left} rarer classes are not shown." if left else ""
        scores = [
            (f"{place / NUM_BINS:.2f} – {(place + 1) / NUM_BINS:.2f}", number, f"{number:,}")
            for place, number in enumerate(self.bins if self.classes else [])
        ]
        return [
            Chart("Classes", [(name, number, f"{number:,}") for name, number in best], note),
            Chart("Scores", scores),
        ]


def _found(row: Row) -> list[Row]:
    """The detections, or the best class alone."""
    found: list[Row] = row.get("detections", row.get("classes", [])[:1])
    return found


def add_times(out: OutputFolder, profile: Profile, seconds: float) -> None:
    """Add what the stages of one run have taken to what earlier runs of the job took. seconds: by the clock."""
    wall, busy = _read_times(out.root / PROFILE_FILE)
    total = {name: busy.get(name, 0.0) + stage.busy for name, stage in profile.stages.items()}
    with out.replace(PROFILE_FILE) as stream:
        stream.write(json.dumps({"wall": wall + seconds, "busy": total}).encode())


def _read_times(path: Path) -> tuple[float, dict[str, float]]:
    if not path.exists():
        return 0.0, {}
    data = json.loads(path.read_bytes())
    return data["wall"], data["busy"]


def _stages(path: Path) -> Chart:
    """Busy seconds of each stage, over all runs of the job."""
    wall, busy = _read_times(path)
    bars = [(name, seconds, f"{seconds:.2f} s") for name, seconds in busy.items()]
    return Chart("Stages", bars, f"Busy time, summed over threads; {wall:.2f} s by the clock.")


def spread(count: int, most: int) -> frozenset[int]:
    """At most `most` places of `count`, evenly spread, the first among them."""
    number = min(count, most)
    return frozenset(place * count // number for place in range(number))
