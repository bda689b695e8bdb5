"""Memory that steps have freed goes back to the system."""

import platform
import subprocess
import sys

import pytest

# Buffers of 5 to 60 MB in turn: by itself glibc would raise its threshold to 32 MB and keep most of them.
PROGRAM = """
import ctypes, random
from pathlib import Path
from vtk.llm_serving.heap import keep_heap_flat

def resident():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)

assert keep_heap_flat()
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
rng, held, before = random.Random(0), [], resident()
for step in range(200):
    size = rng.randrange(5 << 20, 30 << 20)
    pointer = malloc(size)
    ctypes.memset(pointer, 1, size)
    held.append((pointer, malloc(4096)))
    if len(held) > 3:
        free(held.pop(rng.randrange(4))[0])
for pointer, _ in held:
    free(pointer)
assert resident() - before < 8 << 10, resident() - before
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_buffers_leave_nothing_behind() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
