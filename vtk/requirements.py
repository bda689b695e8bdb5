"""Optional packages: a clear error before the first import that would fail."""

from __future__ import annotations

from importlib.util import find_spec

from vtk.errors import MissingDependencyError


def require(*packages: str, needed_for: str, extra: str) -> None:
    """Raise MissingDependencyError, with the install command, for the first package that is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingDependencyError(package, needed_for=needed_for, extra=extra)


def require_llm() -> None:
    """What a language model needs on compiled kernels; other backends ask for torch where they are chosen."""
    require("tokenizers", "jinja2", needed_for="A language model", extra="llm")


def require_structured() -> None:
    """What binding outputs to a grammar needs: xgrammar, which imports torch."""
    require("xgrammar", "torch", needed_for="structured_outputs", extra="structured")


def require_export() -> None:
    """What making a bundle needs; running one needs less."""
    require("torch", "torchvision", "onnx", "onnxscript", needed_for="vtk export", extra="export")
