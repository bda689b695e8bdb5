"""What the formats say they leave in a job's folder is what is there, for every task."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from vtk.inputs import expand
from vtk.run import run_job
from vtk.sinks.registry import ALL_OUTPUTS, FORMATS, output_paths

OF_EVERY_JOB = {"job.json", "results.jsonl", "ledger.jsonl", ".lock"}
GONE_AT_THE_END = {"embeddings.spool"}
CASES = [(task, name) for task, formats in FORMATS.items() for name in formats if name != "video"]


@pytest.mark.parametrize(("task", "name"), CASES)
def test_a_format_leaves_what_it_names(
    stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path], task: str, name: str
) -> None:
    save_picture(tmp_path / "in/a.jpg")
    options = replace(stub.stub_options((name,), task=task), patches=task == "embed")
    run_job(stub.StubModel(task), expand([str(tmp_path / "in")]), tmp_path / "out", options, lambda done, failed: None)
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made - OF_EVERY_JOB == set(output_paths([name], task)) - OF_EVERY_JOB - GONE_AT_THE_END
    assert set(output_paths([name], task)) <= set(ALL_OUTPUTS)


@pytest.mark.parametrize("task", FORMATS)
def test_overwriting_leaves_nothing_of_the_old_job(
    stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path], task: str
) -> None:
    save_picture(tmp_path / "in/a.jpg")
    formats = [name for name in FORMATS[task] if name != "video"]
    plan, out = expand([str(tmp_path / "in")]), tmp_path / "out"
    options = stub.stub_options(formats, task=task)
    run_job(stub.StubModel(task), plan, out, options, lambda done, failed: None)
    options = replace(stub.stub_options((formats[0],), task=task), overwrite=True)
    run_job(stub.StubModel(task), plan, out, options, lambda done, failed: None)
    left = {path.name for path in out.iterdir()} - OF_EVERY_JOB
    assert left == set(output_paths([formats[0]], task)) - OF_EVERY_JOB - GONE_AT_THE_END
