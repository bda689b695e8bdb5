"""Past one machine with Ray: whole folder jobs (`vtk run --ray`) and results as columns of a Ray dataset."""

from vtk.ray.cluster import RayWorkers
from vtk.ray.dataset import map_batches
from vtk.ray.job import run_on_ray

__all__ = ["RayWorkers", "map_batches", "run_on_ray"]
