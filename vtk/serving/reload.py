"""Changing models without a gap: the new one is opened beside the old one, proven, swapped in, and the old one drains.

A version that cannot be loaded is told in its status and tried again when its files change; it never keeps a look at
the model folder from going on to the next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from vtk.errors import NotFoundError, VtkError
from vtk.serving.model_folder import FoundModel, Inventory, Stamp
from vtk.serving.model_table import ModelStatus, ModelTable, OpenedModel

_log = logging.getLogger(__name__)

Open = Callable[[FoundModel], OpenedModel]
Look = Callable[[], Inventory]
_Key = tuple[str, str]


class Reloader:
    """Loads one model at a time, so that what a load takes can be measured; every method may be called from any thread.

    look: finds what is on disk. open_model: opens, verifies and warms up one model, with memory of the budget.
    """

    def __init__(self, table: ModelTable, look: Look, open_model: Open) -> None:
        self._table = table
        self._look = look
        self._open = open_model
        self._one_at_a_time = threading.RLock()
        self._tried: dict[_Key, Stamp] = {}
        self._unloaded: set[str] = set()
        self._last: dict[_Key, Stamp] = {}
        self.inventory = Inventory()

    def start(self) -> None:
        """Load everything that is there."""
        with self._one_at_a_time:
            self.inventory = self._look()
            self._last = _stamps(self.inventory)
            for found in self.inventory.models:
                self._table.loading(found)
            for found in sorted(self.inventory.models, key=_vision_first):
                self._load(found)

    def load(self, name: str) -> ModelStatus:
        """Load the newest version again, and others that are new or have changed; the status of the newest.

        Raises NotFoundError for a name that is not there.
        """
        with self._one_at_a_time:
            self.inventory = self._look()
            versions = [found for found in self.inventory.models if found.name == name]
            if not versions:
                raise NotFoundError(f"There is no model '{name}' to load.", hint=f"There are: {self._names()}.")
            was_unloaded = name in self._unloaded
            self._unloaded.discard(name)
            for found in versions[:-1]:
                if was_unloaded or self._has_changed(found):
                    self._load(found)
            return self._load(versions[-1])

    def unload(self, name: str) -> None:
        """Take a model out of service until it is loaded again by name. Raises NotFoundError."""
        with self._one_at_a_time:
            self._table.unload(name)
            self._unloaded.add(name)

    def poll(self) -> None:
        """Look once: load what is new or has changed and is no longer changing, forget what is gone."""
        with self._one_at_a_time:
            self.inventory = self._look()
            now, before = _stamps(self.inventory), self._last
            self._last = now
            for found in self.inventory.models:
                key = (found.name, found.version)
                is_still = before.get(key) == found.stamp
                if is_still and self._has_changed(found) and found.name not in self._unloaded:
                    self._load(found)
            # A folder that is being replaced is gone for a moment: only what two looks miss is gone.
            for key in [key for key in self._tried if key not in now and key not in before]:
                _log.info("%s version %s is gone from the model folder", *key)
                del self._tried[key]
                self._table.remove(*key)

    def _has_changed(self, found: FoundModel) -> bool:
        return self._tried.get((found.name, found.version)) != found.stamp

    def _load(self, found: FoundModel) -> ModelStatus:
        self._tried[found.name, found.version] = found.stamp
        self._table.loading(found)
        try:
            opened = self._open(found)
        except Exception as error:
            expected = isinstance(error, VtkError)
            reason = str(error) if expected else f"{type(error).__name__}: {error}"
            _log.error("%s version %s was not loaded: %s", found.name, found.version, reason, exc_info=not expected)
            return self._table.fail(found, reason)
        if not self._table.put(found, opened):
            opened.close()
        return opened.facts

    def _names(self) -> str:
        return ", ".join(sorted({found.name for found in self.inventory.models})) or "none"


class Poller:
    """Calls `poll` every `interval` seconds on a thread of its own until `close`."""

    def __init__(self, poll: Callable[[], None], interval: float) -> None:
        self._poll = poll
        self._interval = interval
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vtk-model-folder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the look in progress."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            self._look()

    def _look(self) -> None:
        try:
            self._poll()
        except Exception:
            _log.exception("a look at the model folder failed; the next one follows")


def _stamps(inventory: Inventory) -> dict[_Key, Stamp]:
    return {(found.name, found.version): found.stamp for found in inventory.models}


def _vision_first(found: FoundModel) -> tuple[bool, str, int]:
    """Language models take what is left for their KV cache; of one model the newest version comes first."""
    return found.kind != "vision", found.name, -int(found.version)
