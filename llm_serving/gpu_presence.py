"""Whether there is an NVIDIA GPU to ask torch about: importing it takes seconds and half a gigabyte."""

from __future__ import annotations

import ctypes
import sys


def has_nvidia_gpu() -> bool:
    """Whether the driver, which is asked by itself, finds one or more."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        answers = (driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(count)))
    except (OSError, AttributeError):  # no driver, or something else of that name
        return False
    return answers == (0, 0) and count.value > 0
