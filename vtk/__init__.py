"""vtk: a vision model deployment toolkit with a language-model runtime.

Public names are loaded on first use, so that `import vtk` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vtk.api import Model, export, inspect, load, verify
    from vtk.errors import VtkError
    from vtk.llm import LLM
    from vtk.llm_serving.sampling.params import SamplingParams
    from vtk.llm_serving.sampling.structured import StructuredOutputsParams
    from vtk.postprocess.results import Classification, Detections, Embeddings
    from vtk.segmenting.clicks import Clicks
    from vtk.segmenting.prompts import Prompt

_PUBLIC = {
    "LLM": "vtk.llm",
    "Model": "vtk.api",
    "export": "vtk.api",
    "inspect": "vtk.api",
    "load": "vtk.api",
    "verify": "vtk.api",
    "SamplingParams": "vtk.llm_serving.sampling.params",
    "Clicks": "vtk.segmenting.clicks",
    "Prompt": "vtk.segmenting.prompts",
    "StructuredOutputsParams": "vtk.llm_serving.sampling.structured",
    "VtkError": "vtk.errors",
    "Classification": "vtk.postprocess.results",
    "Detections": "vtk.postprocess.results",
    "Embeddings": "vtk.postprocess.results",
}

__all__ = [
    "LLM",
    "Classification",
    "Clicks",
    "Detections",
    "Embeddings",
    "Model",
    "Prompt",
    "SamplingParams",
    "StructuredOutputsParams",
    "VtkError",
    "export",
    "inspect",
    "load",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'vtk' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
