"""What a profile says of runs whose answer is known."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from vtk.cli.profile_screen import profile_lines
from vtk.inputs import expand
from vtk.profile import ADVICE, POOLS, STAGES, Profile, Stage, judge
from vtk.run import run_job


def profile_of(wall: float, cpu: float, threads: dict[str, int], **busy: tuple[float, float]) -> Profile:
    """busy: stage → seconds at work, and of the processor."""
    stages = {name: Stage(*busy.get(name, (0.0, 0.0)), calls=10) for name in STAGES}
    return Profile(stages, {**dict.fromkeys(POOLS, 1), **threads}, wall, cpu)


@pytest.mark.parametrize(
    ("profile", "cores", "bound", "efficiency", "stage"),
    [
        (profile_of(10, 19, {"infer": 2}, infer=(19.5, 15), decode=(4, 4)), 2, "the processor", 0.95, "infer"),
        (profile_of(10, 19, {"load": 4}, infer=(9.9, 5), decode=(38, 14)), 2, "the processor", 0.95, "decode"),
        (profile_of(10, 20, {"infer": 2}, infer=(19, 1), decode=(4, 4)), 16, "the 2 threads that infer", 0.95, "infer"),
        (profile_of(10, 9, {"load": 2}, read=(15, 1), decode=(4, 4)), 8, "the 2 threads that load", 0.95, "read"),
        (profile_of(10, 2, {}, commit=(9, 1), decode=(1, 1)), 2, "the one thread to commit", 0.9, "commit"),
    ],
)
def test_the_bottleneck_is_found(profile: Profile, cores: int, bound: str, efficiency: float, stage: str) -> None:
    verdict = judge(profile, cores)
    assert verdict.bound.startswith(bound)
    assert verdict.efficiency == pytest.approx(efficiency)
    assert verdict.advice == ADVICE[stage]


def test_a_short_run_is_bound_by_nothing() -> None:
    verdict = judge(profile_of(10, 2, {}, infer=(3, 1), decode=(3, 1)), 2)
    assert verdict.bound == "nothing in particular"


def test_overlap_is_how_many_threads_work_at_once() -> None:
    assert profile_of(10, 2, {}, infer=(10, 1), decode=(5, 1)).overlap == pytest.approx(1.5)


def test_a_run_measures_every_stage(stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path]) -> None:
    for index in range(10):
        save_picture(tmp_path / f"in/{index}.png", seed=index)
    (tmp_path / "in/x.png").write_bytes(b"broken")
    plan = expand([str(tmp_path / "in")])
    summary = run_job(stub.StubModel(), plan, tmp_path / "out", stub.stub_options(), lambda done, failed: None)
    profile = summary.profile
    calls = {name: stage.calls for name, stage in profile.stages.items()}
    assert calls == {
        "read": 11, "decode": 11, "preprocess": 10, "infer": 3, "postprocess": 10, "write": 10, "commit": 11
    }  # fmt: skip
    assert all(stage.busy > 0 for stage in profile.stages.values())
    assert profile.wall > 0
    assert profile.cpu > 0
    assert profile.threads == {"load": 3, "infer": 1, "finish": 3, "commit": 1}
    lines = list(profile_lines(profile, 2))
    assert [line.split()[0] for line in lines[1 : 1 + len(STAGES)]] == list(STAGES)
    assert lines[-1].startswith("to go faster: ")
