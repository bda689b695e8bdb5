"""Kernels in Triton's interpreter, launches on a device that is not there, buffers that notice, mutated kernels."""

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")

HERE = Path(__file__).parent
POISON = 77  # of integers; floats are poisoned with NaN


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


interpreter = load("vtk_tests_interpreter", HERE / "interpreter.py")
fake_driver = load("vtk_tests_fake_driver", HERE / "fake_driver.py")


@pytest.fixture(scope="module")
def interpreted() -> Iterator[None]:
    """For the tests of a module, launched kernels run in the interpreter: `usefixtures("interpreted")`."""
    with interpreter.interpreted():
        yield


@pytest.fixture(scope="session")
def interpreting() -> Callable[[], Any]:
    """The same for a part of a test: `with interpreting():`."""
    function: Callable[[], Any] = interpreter.interpreted
    return function


@pytest.fixture(scope="module")
def own_kernels(interpreted: None, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The test module with the kernels that it defines itself, interpreted."""
    with pytest.MonkeyPatch.context() as patch:
        interpreter.swap_module(patch, request.module, {})
        yield request.module


@pytest.fixture(scope="session")
def fake_cuda() -> Callable[[int], Any]:
    """`with fake_cuda(90) as device:` records the launches of what runs inside."""
    function: Callable[[int], Any] = fake_driver.fake_cuda
    return function


class Buffer:
    """A poisoned tensor of rows that lie `gap` elements apart, between two guards of 1024 elements."""

    GUARD = 1024

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32, gap: int = 0) -> None:
        rows = torch.Size(shape[:1]).numel()
        columns = torch.Size(shape[1:]).numel() if len(shape) > 1 else 1
        self.memory = torch.empty(rows * (columns + gap) + 2 * self.GUARD, dtype=dtype)
        self.memory.fill_(torch.nan if dtype.is_floating_point else POISON)
        self.untouched = torch.ones(len(self.memory), dtype=torch.bool)
        self.tensor = self._view(self.memory, shape, columns, gap)
        self._view(self.untouched, shape, columns, gap).fill_(False)

    def _view(self, memory: torch.Tensor, shape: tuple[int, ...], columns: int, gap: int) -> torch.Tensor:
        rows = memory[self.GUARD : len(memory) - self.GUARD].view(-1, columns + gap)[:, :columns]
        return rows.unflatten(1, shape[1:]) if len(shape) > 1 else rows[:, 0]

    def intact(self) -> bool:
        """Whether guards and gaps still hold the poison."""
        around = self.memory[self.untouched]
        return bool((around.float().isnan() if self.memory.dtype.is_floating_point else around == POISON).all())


@pytest.fixture(scope="session")
def buffer() -> Callable[..., Buffer]:
    """`buffer(4, 64, dtype=torch.float16, gap=8)`: fill `.tensor`, launch, ask `.intact()`."""
    return Buffer


@pytest.fixture
def mutated(
    interpreted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, str], ModuleType]:
    """A copy of a kernel's module with one change of its source, to be caught by a law: `mutated(module, old, new)`."""

    def mutate(module: str, old: str, new: str) -> ModuleType:
        source = Path(str(sys.modules[module].__file__)).read_text()
        assert len(re.findall(re.escape(old), source)) == 1, f"{old!r} has to occur once in {module}"
        path = tmp_path / "mutated.py"
        path.write_text(source.replace(old, new))
        copy = load(f"vtk_tests_mutated_{abs(hash((module, old, new)))}", path)
        monkeypatch.delitem(sys.modules, copy.__name__)
        interpreter.swap_module(monkeypatch, copy, {})
        return copy

    return mutate
