"""The examples of jobs in parts: run as the scheduler would, their commands do every shard once, and these merge."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from vtk.cli.main import build_parser

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
COUNT = 3


@pytest.fixture
def fake_vtk(tmp_path: Path) -> Path:
    """A `vtk` on a PATH of its own that prints its arguments, one a line."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "vtk").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (folder / "vtk").chmod(0o755)
    return folder


def commands(command: list[str], variables: dict[str, str], path: Path) -> list[str]:
    environment = {"PATH": f"{path}:{os.environ['PATH']}", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def check_shards(lines: list[list[str]]) -> None:
    parsed = [build_parser().parse_args(words) for words in lines]
    assert [args.verb for args in parsed] == ["run"] * COUNT
    assert [args.shard for args in parsed] == [f"{number}/{COUNT}" for number in range(1, COUNT + 1)]
    assert len({args.out for args in parsed}) == COUNT
    assert all(args.keep_going for args in parsed), "a bad picture is no reason to start a shard again"


@pytest.mark.parametrize("first", [0, 1, 7])
def test_a_slurm_array_does_every_shard(fake_vtk: Path, first: int) -> None:
    lines = []
    for task in range(first, first + COUNT):
        numbers = {"TASK_ID": task, "TASK_MIN": first, "TASK_COUNT": COUNT}
        variables = {f"SLURM_ARRAY_{name}": str(value) for name, value in numbers.items()}
        words = [str(DEPLOY / "slurm_array.sh"), "a bundle", "my pictures", "the out"]
        lines.append(commands(words, variables, fake_vtk))
    check_shards(lines)
    assert lines[0][1:5] == ["a bundle", "my pictures", "-o", "the out.shards/1"]


def test_an_indexed_job_does_every_shard(fake_vtk: Path) -> None:
    job: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes_job.yaml").read_text())
    spec = job["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    settings = {item["name"]: item["value"] for item in container["env"]}
    assert spec["completionMode"] == "Indexed"
    assert settings == {"SHARDS": str(spec["completions"])}
    words = [*container["command"], *container["args"]]
    variables = [{"SHARDS": str(COUNT), "JOB_COMPLETION_INDEX": str(index)} for index in range(COUNT)]
    check_shards([commands(words, each, fake_vtk) for each in variables])


@pytest.mark.parametrize("name", ["slurm_array.sh", "kubernetes_job.yaml"])
def test_the_merge_that_is_named_parses(name: str) -> None:
    (line,) = re.findall(r"vtk merge [^\"\n]+", (DEPLOY / name).read_text())
    args = build_parser().parse_args(shlex.split(line)[1:])
    assert args.verb == "merge"
    assert str(args.shards[0]) == f"{args.out}.shards/*"
