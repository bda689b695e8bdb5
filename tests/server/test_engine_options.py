"""What the settings of a runtime mean for its language engines."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from vtk.errors import BackendError, InputError
from vtk.runtime import Runtime
from vtk.serving.settings import RuntimeSettings


def test_the_share_of_a_gpu_is_told_to_the_engine(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def stop(source: Any, args: Any) -> None:
        seen.append(args.gpu_memory_utilization)
        raise BackendError("That is enough.")

    monkeypatch.setattr("vtk.serving.open_language.make_engine", stop)
    settings = RuntimeSettings(selected=(str(tiny_llama),), gpu_memory_utilization=0.5)
    with closing(Runtime(settings)) as runtime, pytest.raises(InputError, match="That is enough"):
        runtime.start()
    assert seen == [0.5]
