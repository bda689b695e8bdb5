"""One run's folder: what was asked, what is done, what failed — so that a killed job goes on where it stopped.

`job.json` says what was asked. Pictures are committed in input order, each as one row of `results.jsonl` or of
`ledger.jsonl`, and a picture without a row is not done. A row's `index` is the picture's place in the whole job; where
a folder holds only a part of it, `order` lists the places of that part. Going on is therefore: find the longest prefix
of the order that has its rows, cut off what is behind it, continue. Rows reach the system at once and the disk every
few seconds, so a killed process loses nothing and a power cut a few rows, which are computed again.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from vtk.bundle import sync_folder
from vtk.errors import OutputError, UsageError
from vtk.items import Item
from vtk.naming import utf8
from vtk.sinks.base import SCRATCH, OutputFolder, Row
from vtk.sinks.jsonl import LineLog

JOB_FILE = "job.json"
RESULTS_FILE = "results.jsonl"
LEDGER_FILE = "ledger.jsonl"
LOCK_FILE = ".lock"
SYNC_SECONDS = 5.0
ALL_INDEXES = range(sys.maxsize)


class Job:
    """An open, locked job folder. `results` and `ledger` hold one row per picture that is done."""

    def __init__(self, root: Path, results: LineLog, ledger: LineLog, order: Sequence[int]) -> None:
        self.root = root
        self.results = results
        self.ledger = ledger
        self.order = order
        done = _prefix_length(order, results.indexes(), ledger.indexes())
        end = order[done] if done < len(order) else sys.maxsize
        results.resume(end)
        ledger.resume(end)
        self.reasons = Counter(str(row["reason"]) for row in ledger.rows())
        self._synced = time.monotonic()

    @property
    def num_done(self) -> int:
        """Pictures with a row; `order[num_done]` is the index of the next one."""
        return self.results.count + self.ledger.count

    @property
    def num_failed(self) -> int:
        return self.ledger.count

    def file_names(self) -> Iterator[str]:
        """Those of all pictures with a row, as written there, results first."""
        return (str(row["file_name"]) for row in chain(self.results.rows(), self.ledger.rows()))

    def add_result(self, row: Row) -> None:
        """Commit one result, which must be the next one's."""
        assert row["index"] == self.order[self.num_done]
        self.results.append(row)
        self._sync_sometimes()

    def add_failure(self, item: Item, reason: str, message: str) -> None:
        """Commit one failure; `item` must be the next one."""
        assert item.index == self.order[self.num_done]
        names = {"path": utf8(item.path), "file_name": utf8(item.file_name)}
        self.ledger.append({"index": item.index, **names, "reason": reason, "message": message})
        self.reasons[reason] += 1
        self._sync_sometimes()

    def _sync_sometimes(self) -> None:
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self.results.sync()
            self.ledger.sync()
            self._synced = time.monotonic()


@contextmanager
def open_job(
    root: Path,
    request: Mapping[str, Any],
    *,
    notes: Mapping[str, Any],
    outputs: Iterable[str],
    overwrite: bool = False,
    order: Sequence[int] = ALL_INDEXES,
    inputs: Iterable[str] = (),
) -> Iterator[Job]:
    """Start the job that `request` describes in `root`, or go on with it.

    request: JSON data, everything that decides the results; a job goes on only with an equal one. notes: JSON data kept
    beside it. outputs: names in `root` that jobs write and `overwrite` may delete. order: the rising indexes of this
    folder's pictures. inputs: paths that the job reads, none of which `overwrite` may delete. Raises UsageError when
    the folder holds something else or another process works in it, OutputError when it cannot be made.
    """
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file, not a folder.", hint="Choose another -o; nothing was changed.")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"The folder {root} cannot be made: {error.strerror}.") from error
    with _locked(root):
        _claim(root, {"request": request, "notes": notes}, outputs, overwrite, inputs)
        shutil.rmtree(root / SCRATCH, ignore_errors=True)
        try:
            with LineLog(root / RESULTS_FILE) as results, LineLog(root / LEDGER_FILE) as ledger:
                yield Job(root, results, ledger, order)
        finally:
            shutil.rmtree(root / SCRATCH, ignore_errors=True)


def delete_job(root: Path, *, outputs: Iterable[str], inputs: Iterable[str]) -> None:
    """Delete the job in `root`, if there is one; arguments and errors are those of `open_job`."""
    if (root / JOB_FILE).is_file():
        with _locked(root):
            _delete(root, outputs, inputs)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the folder's lock. The kernel frees it with the process, however that ends, so no lock is ever stale."""
    with (root / LOCK_FILE).open("a+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise UsageError(
                f"Another vtk process ({stream.read().strip() or 'unknown'}) is writing to {root}.",
                hint="Wait for it, or choose another -o.",
            ) from None
        stream.truncate(0)
        stream.write(f"pid {os.getpid()}\n")
        stream.flush()
        yield


def _claim(root: Path, job: Mapping[str, Any], outputs: Iterable[str], overwrite: bool, inputs: Iterable[str]) -> None:
    """Make `root` the folder of this job, or find that it already is."""
    path = root / JOB_FILE
    if path.is_file():
        if not overwrite:
            _check_same(path, job["request"])
            return
        _delete(root, outputs, inputs)
    elif others := sorted(entry.name for entry in root.iterdir() if entry.name not in (LOCK_FILE, SCRATCH)):
        raise UsageError(
            f"{root} is not empty ({', '.join(others[:3])}{', …' if len(others) > 3 else ''}) and holds no vtk job.",
            hint="Choose another -o; nothing was changed.",
        )
    with OutputFolder(root).replace(JOB_FILE, durable=True) as stream:
        stream.write(json.dumps(job, indent=2).encode() + b"\n")
    sync_folder(root)


def _check_same(path: Path, request: Mapping[str, Any]) -> None:
    try:
        found = json.loads(path.read_bytes())["request"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is not a readable job: {error!r}.", hint="Choose another -o.") from error
    if changes := changes_between(found, json.loads(json.dumps(request))):
        raise UsageError(
            f"{path.parent} holds a job that was started differently ({'; '.join(changes)}).",
            hint="Repeat its options and inputs to go on with it, choose another -o, or --overwrite it.",
        )


def changes_between(one: Any, other: Any) -> list[str]:
    """What differs in two requests as JSON data, one `key: before → after` each."""
    before, after = _flat(one), _flat(other)
    return [
        f"{key}: {_brief(before.get(key))} → {_brief(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested objects as one level of dotted keys, so that a difference names just what differs."""
    if not isinstance(data, dict):
        return {prefix: data}
    return {key: value for name in data for key, value in _flat(data[name], f"{prefix}.{name}".lstrip(".")).items()}


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"


def _delete(root: Path, outputs: Iterable[str], inputs: Iterable[str]) -> None:
    doomed = (*outputs, RESULTS_FILE, LEDGER_FILE, JOB_FILE)
    _check_spared(root, doomed, inputs)
    _clear(root, doomed)


def _check_spared(root: Path, doomed: Sequence[str], inputs: Iterable[str]) -> None:
    """Raise UsageError for an input that is `root` or lies in what is about to be deleted there."""
    top = root.resolve()
    for text in inputs:
        path = Path(text).resolve()
        if path.is_relative_to(top) and (path == top or path.relative_to(top).parts[0] in doomed):
            raise UsageError(
                f"{text} is an input, and overwriting the job in {root} would delete it.", hint="Choose another -o."
            )


def _clear(root: Path, doomed: Sequence[str]) -> None:
    """Delete what jobs write, `job.json` last: a clear that is killed is still a job that can be overwritten."""
    for name in doomed:
        path = root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _prefix_length(order: Sequence[int], *logs: Iterator[int]) -> int:
    """How far the indexes in the logs, each rising, follow `order` without a gap."""
    length = 0
    for index, expected in zip(heapq.merge(*logs), order, strict=False):
        if index != expected:
            break
        length += 1
    return length
