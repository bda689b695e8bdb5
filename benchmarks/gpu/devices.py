"""A GPU without graphs, for comparisons."""

from __future__ import annotations

from collections.abc import Callable

from vtk.kernels.cuda_device import CudaDevice, CudaStream


class EagerStream(CudaStream):
    """Launches the work again where a graph would be replayed: the same padded step, kernel by kernel."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return lambda: self.run(work)


class EagerDevice(CudaDevice):
    """One GPU without graphs."""

    def new_stream(self) -> EagerStream:
        return EagerStream(self.torch_device, self._priority)
