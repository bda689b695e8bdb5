"""The few calls of the CUDA driver API that running an engine takes, without torch: libcuda comes with the driver.

Source: CUDA Driver API reference; names with `_v2` are what its header maps the plain names to.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.errors import BackendError

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no implicit wait for the default stream
_HANDLE, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ADDRESS = ctypes.c_uint64
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGet": (ctypes.POINTER(_INT), _INT),
    "cuDeviceGetAttribute": (ctypes.POINTER(_INT), _INT, _INT),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_HANDLE), _INT),
    "cuDevicePrimaryCtxRelease_v2": (_INT,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuMemAlloc_v2": (ctypes.POINTER(_ADDRESS), _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _HANDLE, _SIZE, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (_HANDLE, _ADDRESS, _SIZE, _HANDLE),
    "cuStreamCreate": (ctypes.POINTER(_HANDLE), ctypes.c_uint),
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamDestroy_v2": (_HANDLE,),
    "cuGetErrorString": (_INT, ctypes.POINTER(ctypes.c_char_p)),
}


class CudaDevice:
    """One GPU: its memory and one stream. Shares the primary context with torch, if torch is there."""

    def __init__(self, ordinal: int = 0, *, library: Any = None) -> None:
        """Raises BackendError where there is no driver or no such device."""
        self._library = library if library is not None else _load()
        for name, arguments in _ARGUMENTS.items():
            getattr(self._library, name).argtypes = arguments
        self._call("cuInit", 0)
        device = _INT()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._device = device.value
        self._context, self._stream = _HANDLE(), _HANDLE()

    @property
    def target(self) -> str:
        """The compute capability as engines name it, for example `sm_89`."""
        return f"sm_{self._attribute(_MAJOR)}{self._attribute(_MINOR)}"

    @property
    def stream(self) -> int:
        """Handle of the stream on which copies and the engine run."""
        return int(self._stream.value or 0)

    def open(self) -> None:
        """Retain the context and make the stream; `close` is due from here on."""
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.make_current()
        self._call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)

    def make_current(self) -> None:
        """Contexts belong to threads; call it first in whatever thread uses the device."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, num_bytes: int) -> int:
        """Address of fresh device memory; an engine's empty tensor needs an address as well."""
        address = _ADDRESS()
        self._call("cuMemAlloc_v2", ctypes.byref(address), max(num_bytes, 1))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def upload(self, address: int, array: npt.NDArray[np.generic]) -> None:
        """Copy a C-contiguous array, which must live until `synchronize`."""
        self._call("cuMemcpyHtoDAsync_v2", address, array.ctypes.data, array.nbytes, self._stream)

    def download(self, array: npt.NDArray[np.generic], address: int) -> None:
        """Fill a C-contiguous array; its content is valid after `synchronize`."""
        self._call("cuMemcpyDtoHAsync_v2", array.ctypes.data, address, array.nbytes, self._stream)

    def synchronize(self) -> None:
        """Wait for everything on the stream. Raises BackendError for what failed there."""
        self._call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Give the stream and the context back."""
        if self._context.value is not None:
            self.make_current()
            if self._stream.value is not None:
                self._call("cuStreamDestroy_v2", self._stream)
            self._call("cuDevicePrimaryCtxRelease_v2", self._device)
            self._context, self._stream = _HANDLE(), _HANDLE()

    def _attribute(self, attribute: int) -> int:
        value = _INT()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._device)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._library, name)(*arguments):
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            reason = text.value.decode() if text.value else "unknown error"
            raise BackendError(f"CUDA: {name} failed with error {code}: {reason}.")


def gpu_target() -> str | None:
    """The compute capability of the first GPU, for example `sm_90`; None where no GPU can be used."""
    try:
        return CudaDevice().target
    except BackendError:
        return None


def _load() -> Any:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise BackendError(f"No NVIDIA driver on this machine: {name} cannot be loaded.") from error
