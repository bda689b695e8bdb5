"""A GPU is looked for by asking the driver alone."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from vtk.llm_serving.gpu_presence import has_nvidia_gpu


def driver(*, initialized: int = 0, devices: int = 1) -> Any:
    def count(pointer: Any) -> int:
        pointer._obj.value = devices
        return 0

    return SimpleNamespace(cuInit=lambda flags: initialized, cuDeviceGetCount=count)


def missing(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("library", "found"),
    [
        (lambda name: driver(), True),
        (lambda name: driver(devices=0), False),
        (lambda name: driver(initialized=100), False),
        (lambda name: SimpleNamespace(), False),
        (missing, False),
    ],
)
def test_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch, library: Any, found: bool) -> None:
    monkeypatch.setattr(ctypes, "CDLL", library)
    assert has_nvidia_gpu() is found
