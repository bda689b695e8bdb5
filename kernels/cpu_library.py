"""The compiled CPU kernels: which library, how many threads, and why there is none."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from vtk.errors import BackendError, UsageError

ISAS = ("portable", "avx2", "avx512")
ISA_VARIABLE = "VTK_CPU_ISA"


def _path(isa: str) -> Path:
    return Path(__file__).with_name(f"_cpu_{isa}.so")


def available() -> tuple[bool, str]:
    """Whether the compiled kernels can run here, and the instruction set or the reason why not."""
    try:
        return True, isa()
    except (BackendError, UsageError) as error:
        return False, str(error)


@cache
def best_isa() -> str:
    """The best instruction set of this processor. BackendError if the package was installed without a C++ compiler."""
    best: str = open_library("portable").vtk_best_isa().decode()
    return best


def isa() -> str:
    """The instruction set in use: the best one with a library, or VTK_CPU_ISA if that is set and not above the best.

    Raises UsageError for a VTK_CPU_ISA that is unknown or that the processor lacks, BackendError without libraries.
    """
    usable = [name for name in ISAS[: ISAS.index(best_isa()) + 1] if _path(name).exists()]
    wanted = os.environ.get(ISA_VARIABLE, usable[-1])
    if wanted not in usable:
        raise UsageError(f"{ISA_VARIABLE} is {wanted!r}; this processor and installation offer {', '.join(usable)}.")
    return wanted


@cache
def open_library(name: str) -> ctypes.CDLL:
    """The library of one instruction set, with its signatures declared."""
    try:
        library = ctypes.CDLL(str(_path(name)))
        library.vtk_best_isa.restype = ctypes.c_char_p
        for function, kinds in _SIGNATURES.items():
            symbol = getattr(library, function)
            symbol.restype = None
            symbol.argtypes = [_TYPES[kind] for kind in kinds]
    except (OSError, AttributeError) as error:  # none, damaged, or of another version
        raise BackendError(
            f"The compiled CPU kernels cannot be loaded ({error}).",
            hint="Install a C++ compiler (g++ or clang++) and reinstall the package, or install the extra torch.",
        ) from error
    return library


@cache
def library() -> ctypes.CDLL:
    """The library in use, chosen at the first call."""
    return open_library(isa())


def set_num_threads(count: int) -> None:
    """Threads of every kernel from now on, the caller's included; they sleep between steps. Results do not change.

    The default is 1. Not to be called while a kernel runs.
    """
    if count < 1:
        raise UsageError(f"The number of threads must be at least 1; got {count}.")
    library().vtk_set_num_threads(count)


# p: pointer, l: int64, i: int, f: float. The order is that of the C++ functions.
_TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "i": ctypes.c_int, "f": ctypes.c_float}
_SIGNATURES = {
    "vtk_set_num_threads": "i",
    "vtk_rms_norm": "pppfllp",
    "vtk_silu_and_mul": "pllp",
    "vtk_embedding": "pllippp",
    "vtk_resize_normalize": "pll" + "plpl" + "llii" + "pp",
    "vtk_linear": "plllli" + "pppipl",
    "vtk_rope_and_cache": "plplpl" + "lippi" + "ppppf" + "iiiipppp",
    "vtk_paged_attention": "pliiiii" + "pppp" + "lpppl" + "fp",
}
