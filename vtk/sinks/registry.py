"""Which output formats exist, for which task, and what they leave in the job's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vtk.bundle import Label, Task
from vtk.errors import UsageError
from vtk.preprocess.decode import DecodeOptions
from vtk.sinks import annotated, coco, crops, mask_png, npz, parquet, report, tables, video, yolo
from vtk.sinks.base import OutputFolder, Reread, Sink, read_file


@dataclass(frozen=True)
class SinkOptions:
    """What formats are made with.

    title: what the model is called. model: digest of the tensors that made the results. image_ids: ids of a given COCO
    file by file name, None to number the pictures. reread: reads the picture of a row again. live: pictures may still
    come after `finish`.
    """

    out: OutputFolder
    task: Task
    labels: tuple[Label, ...]
    title: str
    model: str
    decode: DecodeOptions
    patches: bool
    image_ids: Mapping[str, int] | None
    reread: Reread = read_file
    live: bool = False


@dataclass(frozen=True)
class Format:
    """outputs: names in the job's folder. make: None for jsonl, which is the job's own journal, `results.jsonl`."""

    outputs: tuple[str, ...]
    make: Callable[[SinkOptions], Sink] | None


def _of_task(task: Task) -> dict[str, Format]:
    """The formats of what is found in pictures: boxes, masks, classes."""
    name = tables.NAMES[task]
    return {
        "jsonl": Format(("results.jsonl",), None),
        "csv": Format((f"{name}.csv",), lambda it: tables.CsvSink(it.out, it.task)),
        "parquet": Format((f"{name}.parquet",), lambda it: tables.TableSink(it.out, it.task)),
        "html": HTML,
    }


HTML = Format(
    (report.REPORT, report.PROFILE_FILE), lambda it: report.ReportSink(it.out, it.title, it.decode, it.reread)
)
BOXES = {
    "coco": Format((coco.DATASET, coco.RESULTS), lambda it: coco.CocoSink(it.out, it.labels, it.image_ids)),
    "yolo": Format((yolo.FOLDER,), lambda it: yolo.YoloSink(it.out, it.labels)),
    "crops": Format((crops.FOLDER,), lambda it: crops.CropsSink(it.out, it.decode)),
    "annotated": Format((annotated.FOLDER,), lambda it: annotated.AnnotatedSink(it.out, it.decode)),
    "video": Format((video.FOLDER,), lambda it: video.VideoSink(it.out, it.decode, it.reread)),
}
MASKS = {
    **BOXES,
    "coco": Format(
        (coco.DATASET, coco.RESULTS, coco.MASK_RESULTS),
        lambda it: coco.CocoSink(it.out, it.labels, it.image_ids, masks=True),
    ),
    "yolo": Format((yolo.FOLDER,), lambda it: yolo.YoloSink(it.out, it.labels, outlines=True)),
    "masks": Format((mask_png.FOLDER,), lambda it: mask_png.MaskPngSink(it.out, it.labels)),
}
VECTORS = {
    "parquet": Format(
        (parquet.TABLE, parquet.SPOOL),
        lambda it: parquet.ParquetSink(it.out, model=it.model, patches=it.patches, keep_spool=it.live),
    ),
    "npz": Format((npz.FOLDER,), lambda it: npz.NpzSink(it.out, patches=it.patches)),
    "html": HTML,
}

# By task; the first one is the default.
FORMATS: Mapping[Task, Mapping[str, Format]] = {
    "detect": {**_of_task("detect"), **BOXES},
    "segment": {**_of_task("segment"), **MASKS},
    "embed": VECTORS,
    "classify": _of_task("classify"),
}
ALL_OUTPUTS = tuple(sorted({name for table in FORMATS.values() for item in table.values() for name in item.outputs}))


def check_formats(names: Sequence[str], task: Task) -> tuple[str, ...]:
    """The formats as asked, each once, or the task's default for none. Raises UsageError for one that does not fit."""
    known = FORMATS[task]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--format {name} does not fit a bundle of task '{task}'.", hint=f"It takes: {', '.join(known)}."
            )
    return tuple(dict.fromkeys(names)) or (next(iter(known)),)


def make_sinks(names: Sequence[str], options: SinkOptions) -> list[Sink]:
    """The sinks of checked format names. Raises MissingDependencyError where a format needs a package."""
    made = (FORMATS[options.task][name].make for name in names)
    return [make(options) for make in made if make is not None]


def output_paths(names: Sequence[str], task: Task) -> list[str]:
    """What the formats leave in the job's folder, as names relative to it."""
    return [output for name in names for output in FORMATS[task][name].outputs]
