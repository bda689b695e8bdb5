"""TensorRT 10, TensorRT 11 and TensorRT-RTX as one library: everything in which they differ is here.

Facts read off the bindings 10.16.1, 11.4.0 and tensorrt-rtx 1.7.1. Version 11 dropped weak typing, and with it every
precision flag; on 10 a strongly typed network behaves the same. So precision lives in the graph alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Literal, get_args

from vtk.errors import BackendError, MissingDependencyError, UsageError

Kind = Literal["tensorrt", "tensorrt_rtx"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TITLES: Mapping[str, str] = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
EXTRAS: Mapping[str, str] = {"tensorrt": "gpu", "tensorrt_rtx": "rtx"}

# GPUs that TensorRT-RTX compiles for, whatever machine it runs on. Data-center Hopper and Blackwell are not among them.
RTX_TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_120", "sm_121")
# What it documents as its default: Ampere, Ada, Blackwell. Turing has no FP32 matrix product there.
RTX_DEFAULT_TARGETS = ("sm_80", "sm_86", "sm_89", "sm_120")
OLDEST_RELEASE = 10
NEWEST_RELEASE = "11.4"


@dataclass(frozen=True)
class TensorRT:
    """An imported library: `module` is `tensorrt` or `tensorrt_rtx`, `version` what it says of itself."""

    module: Any
    kind: Kind
    version: str

    @property
    def title(self) -> str:
        """Name and version for messages."""
        return f"{TITLES[self.kind]} {self.version}"

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers."""
        return release_of(self.version)

    def network_flags(self) -> int:
        """What `create_network` needs for a network whose tensors have the types that the graph states."""
        if self.kind == "tensorrt" and self.release[0] == OLDEST_RELEASE:
            return 1 << int(self.module.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        return 0  # TensorRT 11 and TensorRT-RTX know nothing else

    def set_targets(self, config: Any, targets: Sequence[str]) -> None:
        """Compile for these GPUs. Classic TensorRT has no such choice: it builds for the GPU that it runs on."""
        if self.kind == "tensorrt_rtx":
            config.num_compute_capabilities = len(targets)
            for index, target in enumerate(targets):
                capability = getattr(self.module.ComputeCapability, target.replace("sm_", "SM"))
                config.set_compute_capability(capability, index)

    @property
    def has_timing_cache(self) -> bool:
        """Whether building measures kernels; TensorRT-RTX leaves the choice of kernels to the machine that runs."""
        return self.kind == "tensorrt"


def release_of(version: str) -> tuple[int, ...]:
    """`10.16.1.11` as (10, 16, 1, 11)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def is_installed(kind: Kind) -> bool:
    """Whether the package can be found; importing it may still fail."""
    return find_spec(kind) is not None


def load(kind: Kind) -> TensorRT:
    """Import the library. Raises MissingDependencyError, and BackendError for one that is broken or too old."""
    if not is_installed(kind):
        raise MissingDependencyError(
            kind.replace("_", "-"), needed_for=f"Building for {TITLES[kind]}", extra=EXTRAS[kind]
        )
    try:
        module = import_module(kind)
    except (
        ImportError,
        OSError,
        RuntimeError,
    ) as error:  # any of these for a missing library
        raise BackendError(
            f"{TITLES[kind]} is installed and cannot be imported: {_first_line(error)}",
            hint=f"Run: pip install --force-reinstall 'vtk-deploy[{EXTRAS[kind]}]'",
        ) from error
    api = TensorRT(module, kind, str(module.__version__))
    if kind == "tensorrt" and api.release[0] < OLDEST_RELEASE:
        raise BackendError(f"{api.title} is too old: vtk needs 10.6 or later.", hint="Run: pip install -U tensorrt")
    return api


def installed_version(kind: Kind) -> str | None:
    """The version of the installed distribution, read without importing it; None where there is none."""
    plain = kind.replace("_", "-")
    found = map(_version, (plain, f"{plain}-cu13", f"{plain}-cu12"))
    return next((text for text in found if text is not None), None)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def check_target(text: str) -> str:
    """`sm_89`, also written `89`, `8.9` or `sm89`. Raises UsageError for anything else."""
    matched = re.fullmatch(r"(?:sm_?)?([0-9]{1,2})\.?([0-9])", text.strip().lower())
    if matched is None:
        raise UsageError(
            f"'{text[:40]}' is no GPU target.", hint="Name compute capabilities, for example --target sm_89,sm_120."
        )
    return f"sm_{matched[1]}{matched[2]}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
