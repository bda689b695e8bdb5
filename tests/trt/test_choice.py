"""Which library builds for which GPU, decided before any work."""

import pytest

from vtk.engine_choice import choose, parse_targets
from vtk.errors import UsageError

CLASSIC, RTX = {"tensorrt": "11.4.0"}, {"tensorrt_rtx": "1.7.1"}
BOTH = {**CLASSIC, **RTX}


def test_classic_builds_for_the_gpu_that_is_here() -> None:
    for targets in ((), ("sm_90",)):
        choice = choose(targets, BOTH, "sm_90", build=True)
        assert (choice.kind, choice.version, choice.targets, choice.missing) == ("tensorrt", "11.4.0", ("sm_90",), None)


def test_rtx_builds_for_gpus_that_are_elsewhere() -> None:
    choice = choose(("sm_89", "sm_120"), BOTH, "sm_90", build=True)
    assert (choice.kind, choice.targets, choice.missing) == ("tensorrt_rtx", ("sm_89", "sm_120"), None)


def test_without_a_gpu_and_a_target_rtx_builds_for_its_default_ones() -> None:
    assert choose((), RTX, None, build=True).targets == ("sm_80", "sm_86", "sm_89", "sm_120")


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_data_center_gpus_need_classic_tensorrt_on_them(target: str) -> None:
    with pytest.raises(UsageError, match=rf"{target} need classic TensorRT.*has none.*--no-build.*vtk build"):
        choose((target,), BOTH, None, build=True)
    with pytest.raises(UsageError, match=r"this machine has sm_89"):
        choose((target, "sm_89"), BOTH, "sm_89", build=True)
    assert choose((target,), RTX, None, build=False).targets == (target,)


def test_what_is_missing_is_named_with_how_to_get_it() -> None:
    on_hopper = choose((), RTX, "sm_90", build=True).missing
    assert on_hopper is not None
    assert "'tensorrt'" in str(on_hopper)
    assert "vtk-deploy[gpu]" in str(on_hopper)
    nothing = choose(("sm_89",), {}, None, build=True).missing
    assert nothing is not None
    assert "tensorrt-rtx" in str(nothing)
    assert "vtk-deploy[rtx]" in str(nothing)
    without_gpu = choose((), CLASSIC, None, build=True).missing
    assert without_gpu is not None
    assert "tensorrt-rtx" in str(without_gpu)


def test_targets_are_read_once_each() -> None:
    assert parse_targets("sm_89, 8.9,sm_120") == ("sm_89", "sm_120")
    assert parse_targets(None) == ()
    with pytest.raises(UsageError):
        parse_targets("sm_89,")
