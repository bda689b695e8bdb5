"""From a model on disk to one that is proven, warm, and has its memory."""

from __future__ import annotations

from vtk.serving.arbiter import Arbiter
from vtk.serving.memory import MemoryBudget
from vtk.serving.model_folder import FoundModel
from vtk.serving.model_table import OpenedModel
from vtk.serving.settings import RuntimeSettings
from vtk.serving.traffic import TrafficProfile


class ModelOpener:
    """Opens models for one runtime, one at a time."""

    def __init__(
        self, settings: RuntimeSettings, arbiter: Arbiter, budget: MemoryBudget, traffic: TrafficProfile
    ) -> None:
        self._settings = settings
        self._arbiter = arbiter
        self._budget = budget
        self._traffic = traffic

    def __call__(self, found: FoundModel) -> OpenedModel:
        """Open, prove and warm up. What was taken on the way is given back when that fails.

        Raises BundleError for files that are not those of the manifest, VerifyError for golden data that is not
        reproduced, UsageError for a model that does not fit into the memory, CheckpointError, BackendError.
        """
        if found.kind == "vision":
            from vtk.serving.open_vision import open_vision

            return open_vision(found, self._settings, self._arbiter, self._budget, self._traffic)
        # torch is imported from here on only
        from vtk.serving.open_language import open_language

        return open_language(found, self._settings, self._arbiter, self._budget, self._traffic)
