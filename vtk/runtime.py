"""The one owner of the device: which models are served, in which memory, and who may compute when."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from vtk.errors import BackendError, InputError, UsageError, VtkError
from vtk.serving.arbiter import Arbiter
from vtk.serving.memory import MemoryBudget, memory_for
from vtk.serving.model_folder import Ignored
from vtk.serving.model_table import ModelStatus as ModelStatus
from vtk.serving.model_table import ModelTable
from vtk.serving.opening import ModelOpener
from vtk.serving.reload import Open, Periodic, Reloader
from vtk.serving.selection import check_selected, look, nothing_to_serve
from vtk.serving.settings import RuntimeSettings
from vtk.serving.traffic import TrafficProfile
from vtk.serving.traffic_watch import TrafficWatch

if TYPE_CHECKING:
    from vtk.serving.language_model import LanguageModel
    from vtk.serving.vision_model import VisionModel

CLOSE_TIMEOUT = 30.0
WATCH_INTERVAL = 10.0
_log = logging.getLogger(__name__)


class Runtime:
    """Serves models until `close`; every method may be called from any thread.

    arbiter: who computes next, a picture batch or a language step. budget: who holds how much memory. traffic: what is
    asked for most, to warm up with.
    """

    def __init__(self, settings: RuntimeSettings, *, open_model: Open | None = None) -> None:
        """open_model: opens, verifies and warms up one model, by default as `ModelOpener` does."""
        self.settings = settings
        self.arbiter = Arbiter(max_itl=settings.max_itl, vision_share=settings.vision_share)
        self.budget = MemoryBudget(memory_for(settings))
        self.traffic = TrafficProfile(settings.traffic_profile)
        self._table = ModelTable()
        self._watch = TrafficWatch(self.traffic, self._table)
        opener = open_model or ModelOpener(settings, self.arbiter, self.budget, self.traffic)
        self._reloader = Reloader(self._table, lambda: look(settings), opener)
        self._periodic: list[Periodic] = []
        self._is_started = False

    @property
    def is_ready(self) -> bool:
        """Everything was loaded, or told why not, and requests are taken."""
        return self._is_started and not self.is_draining

    @property
    def is_draining(self) -> bool:
        """No more requests are taken; those that run are finished."""
        return self._table.is_draining

    def start(self) -> None:
        """Load, verify and warm up every model; then look for changes, if the settings say so.

        A damaged model of the folder is told by `statuses` and the log, and the others serve. Raises InputError when
        there is nothing to serve, when nothing could be loaded, and for a model that was asked for by name, does not
        fit into the memory or cannot follow the settings. `close` is due however this ends, and ends it when called
        meanwhile.
        """
        check_selected(self.settings)
        failures = self._reloader.start()
        if self.is_draining:
            return
        statuses = self.statuses()
        if not statuses:
            raise nothing_to_serve(self.settings, self.ignored())
        nothing_serves = all(status.state != "ready" for status in statuses)
        # A device that was named and cannot be used is no damage of one bundle (case V60).
        ours = UsageError if self.settings.device == "auto" else (UsageError, BackendError)
        for name, error in failures.items():
            if nothing_serves or self.settings.selected or isinstance(error, ours):
                raise _cannot_serve(name, error)
        _log.info("memory, MiB\n%s", self.budget.explain())
        self._is_started = True
        if self.settings.reload_interval is not None:
            self._periodic.append(Periodic(self.poll, self.settings.reload_interval, "vtk-model-folder"))
        if self.traffic.is_on:
            self._periodic.append(Periodic(self._watch, WATCH_INTERVAL, "vtk-traffic"))

    @contextmanager
    def language(self, name: str) -> Iterator[LanguageModel]:
        """A lease of the newest ready version: the model is open until the block ends, whatever is loaded meanwhile.

        Raises NotFoundError, UnavailableError.
        """
        with self._table.lease("llm", name) as opened:
            yield cast("LanguageModel", opened.model)

    @contextmanager
    def vision(self, name: str, version: str | None = None) -> Iterator[VisionModel]:
        """A lease of that version, or the newest ready one. Raises NotFoundError, UnavailableError."""
        with self._table.lease("vision", name, version) as opened:
            yield cast("VisionModel", opened.model)

    def statuses(self) -> list[ModelStatus]:
        """One for each version of each model, by name and then ascending version."""
        return self._table.statuses()

    def ignored(self) -> tuple[Ignored, ...]:
        """What the last look found beside the models, and why it is not served: half-copied folders, other files."""
        return self._reloader.inventory.ignored

    def load(self, name: str) -> ModelStatus:
        """Open the newest version on disk beside the one that serves, verify it, swap, drain the old one.

        Blocks until the new one serves or has failed; then the old one, if any, goes on serving and `reason` says why.
        Raises NotFoundError for a name that was not found on disk: it is compared, never taken as a path.
        """
        return self._reloader.load(name)

    def unload(self, name: str) -> None:
        """Take a model out of service; it is closed when its last lease ends. Raises NotFoundError."""
        self._reloader.unload(name)

    def poll(self) -> None:
        """Look at the model folder once, as is done every `reload_interval` seconds."""
        self._reloader.poll()

    def drain(self, timeout: float) -> bool:
        """Take no more requests and wait for those that run; False if `timeout` seconds were too few for them."""
        return self._table.drain(timeout)

    def close(self) -> None:
        """Close every model as soon as it is free, waiting up to `CLOSE_TIMEOUT`, and save what traffic was seen."""
        for periodic in self._periodic:
            periodic.close()
        self._watch()
        if not self._table.close(CLOSE_TIMEOUT):
            _log.warning("models that are still in use are left open")


def _cannot_serve(name: str, error: Exception) -> InputError:
    message, hint = (error.message, error.hint) if isinstance(error, VtkError) else (repr(error), None)
    return InputError(f"The model '{name}' cannot be served: {message}", hint=hint)
