"""The shards of a job put together: the folder that one run over all pictures would have left.

Rows come in the order of the whole job, files of single pictures are copied, and files over all pictures are made again
from the rows. The merged folder is a job itself: a merge that was interrupted goes on, and `vtk run` with the options
of the shards finds everything done.
"""

from __future__ import annotations

import heapq
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtk.errors import UsageError
from vtk.items import Item
from vtk.job_results import JobFolder, count_rows, read_job
from vtk.jobs import Job, changes_between, open_job
from vtk.naming import utf8
from vtk.postprocess.results import Result
from vtk.preprocess.decode import DecodeOptions
from vtk.run import OnProgress, Summary, told_when_unwritable
from vtk.sinks.base import OutputFolder, Record, Row, Sink
from vtk.sinks.coco import load_image_ids
from vtk.sinks.registry import ALL_OUTPUTS, SinkOptions, make_sinks, output_paths


@dataclass(frozen=True)
class FinishedShard:
    """One folder to merge. request: its job's, without the part. number, of, pictures: that part."""

    job: JobFolder
    request: Mapping[str, Any]
    number: int
    of: int
    pictures: int

    @property
    def root(self) -> Path:
        return self.job.root

    def rows(self) -> Iterator[tuple[Row, Result | None]]:
        """All rows by rising index, those of the ledger without a result."""
        results = zip(self.job.rows(), self.job.results(), strict=True)
        failures = ((row, None) for row in self.job.failures())
        return heapq.merge(results, failures, key=_index)


def merge_jobs(
    shards: Sequence[FinishedShard], out: Path, on_progress: OnProgress, *, overwrite: bool = False
) -> Summary:
    """Merge the shards of `read_shards` into `out`; `on_progress(done, failed)` follows every thousand rows.

    Raises UsageError when `out` holds another job, OutputError when it cannot be written.
    """
    request = dict(shards[0].request)
    roots = [str(shard.root) for shard in shards]
    notes = {**shards[0].job.notes, "merged_from": [utf8(root) for root in roots]}
    sinks = make_sinks(request["formats"], _sink_options(out, shards[0]))
    start = time.monotonic()
    with (
        told_when_unwritable(out),
        open_job(out, request, notes=notes, outputs=ALL_OUTPUTS, overwrite=overwrite, inputs=roots) as job,
    ):
        before = job.num_done
        for sink in sinks:
            sink.rewind(job.results.count, job.results.rows)
        for shard in shards:
            _copy_folders(shard, OutputFolder(out))
        _take_rows(shards, job, sinks, on_progress)
        for sink in sinks:
            sink.finish(job.results.count, job.results.rows)
        seconds = time.monotonic() - start
        return Summary(job.results.count, Counter(job.reasons), job.num_done - before, seconds, complete=True)


def read_shards(roots: Sequence[Path]) -> list[FinishedShard]:
    """The shards in order of their numbers. Raises UsageError unless they are all parts of one job, and finished."""
    shards = sorted((_read_shard(root) for root in roots), key=lambda shard: shard.number)
    first = shards[0]
    for shard in shards[1:]:
        if changes := changes_between(first.request, shard.request):
            raise UsageError(f"{first.root} and {shard.root} are not shards of one job ({'; '.join(changes)}).")
    found, wanted = [shard.number for shard in shards], list(range(1, first.of + 1))
    if found != wanted or any(shard.of != first.of for shard in shards):
        given = ", ".join(f"{shard.number}/{shard.of}" for shard in shards)
        raise UsageError(f"Shards 1/{first.of} to {first.of}/{first.of} are needed, each once; given: {given}.")
    for shard in shards:
        done = count_rows(shard.root).num_done
        if done != shard.pictures or not shard.job.is_readable():
            raise UsageError(
                f"Shard {shard.number}/{shard.of} in {shard.root} has {done} of its {shard.pictures} pictures.",
                hint="Run its command again to finish it, then merge.",
            )
    return shards


def _read_shard(root: Path) -> FinishedShard:
    job = read_job(root)
    part = job.request.get("shard")
    if part is None:
        raise UsageError(f"{root} holds a whole job, not a shard.", hint="Shards are made by 'vtk run --shard I/N'.")
    return FinishedShard(job, {**job.request, "shard": None}, part["number"], part["of"], part["pictures"])


def _sink_options(out: Path, shard: FinishedShard) -> SinkOptions:
    request = shard.request
    decode = {**request["decode"], "device": "cpu"}
    if isinstance(decode["alpha"], list):
        decode["alpha"] = tuple(decode["alpha"])
    coco_images = request["coco_images"]
    return SinkOptions(
        out=OutputFolder(out),
        task=shard.job.task,
        labels=shard.job.labels,
        title=f"{shard.job.notes['family']} {shard.job.notes['variant']}",
        model=request["tensor_digest"],
        decode=DecodeOptions(**decode),
        patches=request["patches"],
        image_ids=None if coco_images is None else load_image_ids(Path(coco_images)),
    )


def _copy_folders(shard: FinishedShard, out: OutputFolder) -> None:
    """Copy the files of single pictures. What is there already is whole, since files appear whole or not at all."""
    for name in output_paths(shard.request["formats"], shard.job.task):
        for path in sorted((shard.root / name).rglob("*")):
            relative = path.relative_to(shard.root)
            if path.is_file() and not (out.root / relative).exists():
                with path.open("rb") as source, out.replace(relative.as_posix()) as target:
                    shutil.copyfileobj(source, target)


def _take_rows(shards: Sequence[FinishedShard], job: Job, sinks: Sequence[Sink], on_progress: OnProgress) -> None:
    for place, (row, result) in enumerate(heapq.merge(*(shard.rows() for shard in shards), key=_index)):
        if row["index"] != place:
            raise UsageError(f"The shards hold picture {row['index']} twice, or not all before it.")
        if place < job.num_done:
            continue
        item = Item(place, row["path"], row["file_name"], row.get("output", ""))
        if result is None:
            job.add_failure(item, row["reason"], row["message"])
        else:
            for sink in sinks:
                sink.commit(Record(item, row, result))
            job.add_result(row)
        if job.num_done % 1000 == 0:
            on_progress(job.num_done, job.num_failed)
    on_progress(job.num_done, job.num_failed)


def _index(pair: tuple[Row, Result | None]) -> int:
    index: int = pair[0]["index"]
    return index
