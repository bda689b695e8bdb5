"""Every kernel compiles for the GPUs it is meant for, within its registers, and with the instructions it needs.

For one GPU here, and attention for all of them; `benchmarks/gpu/resources.py` compiles everything for every GPU.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from vtk.kernels.cuda_cases import CAPABILITIES, CompileCase, all_cases
from vtk.kernels.cuda_compile import compile_case, complaints

EVERYWHERE = ("paged_attention decode bf16 128", "paged_attention prefill bf16 128")
TABLE = Path(__file__).parents[3] / "benchmarks/gpu/RESOURCES.md"


@pytest.fixture(autouse=True, scope="module")
def empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is tested is the compiler, not what it once left on the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def chosen() -> list[tuple[CompileCase, int]]:
    pairs = [(case, capability) for case in all_cases() for capability in case.capabilities]
    return [(case, capability) for case, capability in pairs if capability == 90 or case.name in EVERYWHERE]


@pytest.mark.parametrize(("case", "capability"), chosen(), ids=lambda value: getattr(value, "name", value))
def test_it_compiles_within_its_limits(case: CompileCase, capability: int) -> None:
    assert not complaints(case, capability, compile_case(case, capability))


def test_names_are_unique_and_hopper_is_always_covered() -> None:
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    assert all(90 in case.capabilities and set(case.capabilities) <= set(CAPABILITIES) for case in cases)


def test_the_committed_table_holds_every_case() -> None:
    text = TABLE.read_text()
    for case in all_cases():
        rows = sum(line.startswith(f"| {case.name} |") for line in text.splitlines())
        assert rows == len(case.capabilities), f"{case.name}: run benchmarks/gpu/resources.py"
