"""What `vtk run --profile` prints."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from vtk.cli.text import counted
from vtk.profile import POOLS, Profile, judge


def print_profile(console: Console, profile: Profile, cores: int) -> None:
    """A line per stage, the overlap, and the bottleneck with what to change."""
    for line in profile_lines(profile, cores):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def profile_lines(profile: Profile, cores: int) -> Iterator[str]:
    """busy: seconds at work, summed over the threads. ms: processor time per picture. load: of the stage's threads."""
    count = max(profile.pictures, 1)
    yield f"{'stage':<12}{'busy s':>9}{'cpu s':>9}{'ms/picture':>12}{'threads':>9}{'load':>7}"
    for pool, stages in POOLS.items():
        for name in stages:
            stage = profile.stages[name]
            share = stage.busy / profile.threads[pool] / max(profile.wall, 1e-9)
            yield (
                f"{name:<12}{stage.busy:>9.2f}{stage.cpu:>9.2f}{1000 * stage.cpu / count:>12.2f}"
                f"{profile.threads[pool]:>9}{share:>7.0%}"
            )
    if (counts := profile.gpu_decoding) is not None:
        rest = profile.stages["decode"].calls - counts["decoded"]
        refused = counts["refused"]
        yield f"decoded on the GPU: {counts['decoded']}; left to the CPU: {rest}, of which it refused {refused}"
    verdict = judge(profile, cores)
    yield (
        f"wall {profile.wall:.2f} s for {counted(profile.pictures, 'picture')}; "
        f"{profile.overlap:.2f} threads at work on average; {profile.core_load(cores):.0%} of {counted(cores, 'core')}"
    )
    yield f"bound by {verdict.bound}: efficiency {verdict.efficiency:.0%}"
    yield f"to go faster: {verdict.advice}"
