"""The results of a job's folder read back: every picture's row and the value it was made of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from vtk.bundle import Label, Task
from vtk.errors import UsageError
from vtk.jobs import JOB_FILE, LEDGER_FILE, RESULTS_FILE
from vtk.postprocess.results import Result
from vtk.sinks.base import Row
from vtk.sinks.npz import archive_of, read_npz
from vtk.sinks.parquet import TABLE, read_embeddings
from vtk.sinks.rows import result_of


@dataclass(frozen=True)
class JobFolder:
    """What `job.json` says. request: what decides the results. notes: the rest."""

    root: Path
    request: dict[str, Any]
    notes: dict[str, Any]

    @property
    def task(self) -> Task:
        task: Task = self.request["task"]
        return task

    @property
    def labels(self) -> tuple[Label, ...]:
        return tuple(Label(**label) for label in self.notes["labels"])

    def rows(self) -> Iterator[Row]:
        """The rows of the pictures that have a result, by rising index."""
        return _read_lines(self.root / RESULTS_FILE)

    def failures(self) -> Iterator[Row]:
        """The rows of the pictures that have none."""
        return _read_lines(self.root / LEDGER_FILE)

    def is_readable(self) -> bool:
        """Whether `results` can be read: a table of embeddings is made at the end."""
        made_at_end = self.task == "embed" and "parquet" in self.request["formats"]
        return not made_at_end or (self.root / TABLE).is_file()

    def results(self) -> Iterator[Result]:
        """The value of every row, in their order; embeddings come from the table or the archives of a finished job."""
        if self.task != "embed":
            return (result_of(row, self.task) for row in self.rows())
        if "parquet" in self.request["formats"]:
            return read_embeddings(self.root / TABLE)
        return (read_npz(archive_of(self.root, row)) for row in self.rows())


@dataclass(frozen=True)
class Counts:
    """How far a job has come. failures: reason → count."""

    num_results: int
    failures: Counter[str]

    @property
    def num_failed(self) -> int:
        return self.failures.total()

    @property
    def num_done(self) -> int:
        return self.num_results + self.num_failed


def count_rows(root: Path) -> Counts:
    """What the folder of a job holds. It may be at work, killed, or not begun: rows that are not whole do not count."""
    failures = Counter(str(json.loads(line)["reason"]) for line in _whole_lines(root / LEDGER_FILE))
    return Counts(sum(1 for _ in _whole_lines(root / RESULTS_FILE)), failures)


def total(counts: Iterable[Counts]) -> Counts:
    """Those of several folders together."""
    listed = list(counts)
    return Counts(sum(it.num_results for it in listed), sum((it.failures for it in listed), start=Counter()))


def read_job(root: Path) -> JobFolder:
    """Raises UsageError for a folder without a job."""
    if not (root / JOB_FILE).exists():
        reason = f"it has no {JOB_FILE}" if root.is_dir() else "there is no such folder"
        raise UsageError(f"{root} is not the folder of a vtk job: {reason}.", hint="Name what 'vtk run -o' made.")
    try:
        data = json.loads((root / JOB_FILE).read_bytes())
        return JobFolder(root, dict(data["request"]), dict(data["notes"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{root} is not the folder of a vtk job: {error!r}.") from error


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Up to the first one that a killed process or a power cut has left."""
    if path.exists():
        with path.open("rb") as stream:
            yield from takewhile(lambda line: line.endswith(b"}\n"), stream)


def _read_lines(path: Path) -> Iterator[Row]:
    with path.open("rb") as stream:
        for line in stream:
            yield json.loads(line)
