"""The connection to a Ray cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import ray
from ray.exceptions import RayError

from vtk.errors import BackendError

LOCAL = "local"


@dataclass(frozen=True)
class RayWorkers:
    """address: of a running cluster (`auto`: the one on this machine); `local` starts one that ends with the job.

    workers: processes, each with an engine. num_cpus, num_gpus: what Ray reserves for each.
    """

    address: str = LOCAL
    workers: int = 2
    num_cpus: float = 1
    num_gpus: float = 0


@contextmanager
def connected(where: RayWorkers) -> Iterator[None]:
    """A connection for as long as the block lasts. Raises BackendError when there is none."""
    try:
        if where.address == LOCAL:
            # One more than the workers take: a dataset whose workers hold every CPU waits for its reader forever.
            cpus = math.ceil(where.workers * where.num_cpus) + 1
            ray.init(LOCAL, num_cpus=cpus, include_dashboard=False, log_to_driver=False)
        else:
            ray.init(where.address, log_to_driver=False)
    except (RayError, RuntimeError, ConnectionError, ValueError) as error:
        raise BackendError(f"Ray is not there at '{where.address}': {error}.") from error
    try:
        yield
    finally:
        ray.shutdown()
