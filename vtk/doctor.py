"""What this machine and this installation can do, what is missing for the rest, and how to get it."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vtk.doctor_engines import examine_engines
from vtk.doctor_finding import TINY_GRAPH, Finding, State
from vtk.engines.cuda_driver import gpu_target
from vtk.engines.open import PACKAGES, open_engine
from vtk.errors import VtkError
from vtk.preprocess.decode_gpu import PACKAGE, gpu_decoder

DISTRIBUTION = "vtk-deploy"
# What each extra of the distribution is for; its packages are read from the distribution's own metadata.
EXTRAS = {
    "cpu": "run bundles on ONNX Runtime",
    "openvino": "run bundles on OpenVINO",
    "export": "make bundles from checkpoints",
    "llm": "run language models",
    "torch": "run language models without compiled kernels, many times slower",
    "structured": "JSON schemas, regular expressions and grammars for language models",
    "serve": "serve models over HTTP and gRPC",
    "parquet": "read tables of pictures, write results as Parquet",
    "video": "read and write videos, read cameras",
    "remote": "read pictures from stores such as S3",
    "search": "near-duplicates among millions of embeddings",
    "supervision": "hand detections to supervision",
    "fiftyone": "hand results to FiftyOne",
    "otel": "send traces to OpenTelemetry",
    "gpu": "NVIDIA: ONNX Runtime on CUDA, TensorRT, language models on Triton kernels",
    "rtx": "NVIDIA: TensorRT-RTX engines",
    "gpu-decode": "NVIDIA: JPEG decoding on the GPU (vtk run --decode gpu)",
    "ray": "jobs and servers past one machine",
}
ENGINES = (("ort", "cpu"), ("ort", "cuda"), ("openvino", "cpu"))
_REQUIREMENT = re.compile(r"""([A-Za-z0-9._-]+).*;.*extra == ["']([\w-]+)["']""")


def examine() -> list[Finding]:
    """Look at everything. Opens every engine and device that is installed; changes nothing and asks no network."""
    return [
        *_machine(),
        _name_clash(),
        *_runtime_clash(),
        _gpu(),
        _cpu_kernels(),
        *(_backend(backend, device) for backend, device in ENGINES if find_spec(PACKAGES[backend])),
        *examine_engines(),
        _gpu_decoding(),
        *(_extra(name, packages) for name, packages in extras().items()),
    ]


def extras() -> dict[str, list[str]]:
    """The packages of each extra, in the order of EXTRAS."""
    table: defaultdict[str, list[str]] = defaultdict(list)
    for requirement in requires(DISTRIBUTION) or []:
        matched = _REQUIREMENT.match(requirement)
        if matched and matched[1] != DISTRIBUTION:
            table[matched[2]].append(matched[1])
    return {name: table[name] for name in EXTRAS if table[name]}


def _machine() -> list[Finding]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.machine()}, {usable} usable cores, {memory:.1f} GiB"
    return [
        Finding("vtk", "ok", f"{version(DISTRIBUTION)} in {Path(__file__).parent}"),
        Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})"),
        Finding("machine", "ok", system),
    ]


def _name_clash() -> Finding:
    """The Visualization Toolkit installs a package of the same name over this one, or under it."""
    other = _version("vtk")
    if other is None:
        return Finding("the name vtk", "ok", "no other distribution owns it")
    return Finding(
        "the name vtk",
        "broken",
        f"the Visualization Toolkit {other} is installed as well and shares the package name 'vtk'",
        "Use a virtual environment of its own for vtk-deploy.",
    )


def _runtime_clash() -> list[Finding]:
    """Two distributions of ONNX Runtime write into one folder: the one installed last decides what works."""
    found = [name for name in ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino") if _version(name) is not None]
    if len(found) < 2:
        return []
    fix = f"Run: pip uninstall -y {' '.join(found)}, then install the one that is wanted."
    return [Finding("the name onnxruntime", "broken", f"{' and '.join(found)} share one package", fix)]


def _gpu() -> Finding:
    driver = Path("/proc/driver/nvidia/version")
    if not driver.exists():
        return Finding("NVIDIA driver", "missing", "none on this machine", "Everything runs on the CPU without it.")
    first = driver.read_text().splitlines()[0]
    if (target := gpu_target()) is not None:
        first = f"{first}; {target}"
    if find_spec("torch") is None:
        return Finding("NVIDIA driver", "ok", first)
    import torch

    if not torch.cuda.is_available():
        return Finding(
            "NVIDIA driver",
            "broken",
            f"{first}; torch {torch.__version__} sees no device",
            "Match torch to the driver.",
        )
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return Finding("NVIDIA driver", "ok", f"{first}; {names}")


def _cpu_kernels() -> Finding:
    from vtk.kernels import cpu_library

    usable, found = cpu_library.available()
    if usable:
        return Finding("CPU kernels", "ok", f"compiled, {found}")
    fix = f"Language models run on plain torch until then (pip install '{DISTRIBUTION}[torch]'), many times slower."
    return Finding("CPU kernels", "broken", found, fix)


def _backend(backend: str, device: str) -> Finding:
    """Whether the device really runs a graph, which no list of providers can tell."""
    subject = f"{backend} on {device}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "identity.onnx"
            path.write_bytes(TINY_GRAPH)
            engine = open_engine(path, backend=backend, device=device)
            engine.infer({"x": np.ones(1, np.float32)})
            engine.close()
    except VtkError as error:
        state: State = "broken" if device == "cpu" else "missing"
        return Finding(subject, state, error.message.splitlines()[0], error.hint or "")
    return Finding(subject, "ok", f"runs a graph on {engine.device}")


def _gpu_decoding() -> Finding:
    """Whether nvImageCodec decodes a small JPEG."""
    try:
        gpu_decoder()
    except VtkError as error:
        absent = _version(PACKAGE) is None or gpu_target() is None
        return Finding("nvImageCodec", "missing" if absent else "broken", error.message, error.hint or "")
    return Finding("nvImageCodec", "ok", f"{_version(PACKAGE)} decodes a JPEG on the GPU")


def _extra(name: str, packages: list[str]) -> Finding:
    subject = f"{EXTRAS[name]} [{name}]"
    versions = {package: _version(package) for package in packages}
    if absent := [package for package, found in versions.items() if found is None]:
        fix = f"pip install '{DISTRIBUTION}[{name}]'"
        return Finding(subject, "missing", f"not installed: {', '.join(absent)}", fix)
    return Finding(subject, "ok", ", ".join(f"{package} {found}" for package, found in versions.items()))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
