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
    """Loads one model at a time, so that what a load takes can be measured; any thread may call.

    look: finds what is on disk. open_model: opens, proves and warms up one model, with memory of the budget.
    """

    def __init__(self, table: ModelTable, look: Look, open_model: Open) -> None:
        self._table = table
        self._look = look
        self._open = open_model
        self._one_at_a_time = threading.RLock()
        self._tried: dict[_Key, FoundModel] = {}
        self._unloaded: set[str] = set()
        self._last: dict[_Key, Stamp] = {}
        self._missing: set[_Key] = set()
        self.inventory = Inventory()

    def start(self) -> dict[str, Exception]:
        """Load everything that is there; by name, why the newest version of a model failed of which none serves."""
        failures: dict[str, Exception] = {}
        with self._one_at_a_time:
            self._see()
            for found in self.inventory.models:
                self._table.loading(found)
            for found in sorted(self.inventory.models, key=_newest_first):
                if self._table.is_draining:
                    break
                if (error := self._load(found)) is not None:
                    failures.setdefault(found.name, error)
        ready = {status.name for status in self._table.statuses() if status.state == "ready"}
        return {name: error for name, error in failures.items() if name not in ready}

    def load(self, name: str) -> ModelStatus:
        """Load the newest version again, and others that are new or have changed; the status of the newest.

        Raises NotFoundError for a name that is not there.
        """
        with self._one_at_a_time:
            self._see()
            versions = [found for found in self.inventory.models if found.name == name]
            if not versions:
                there = ", ".join(sorted({found.name for found in self.inventory.models})) or "none"
                raise NotFoundError(f"There is no model {name[:80]!r} to load.", hint=f"There are: {there}.")
            was_unloaded = name in self._unloaded
            self._unloaded.discard(name)
            newest = versions[-1]
            self._load(newest)
            for found in versions[:-1]:
                if was_unloaded or self._has_changed(found):
                    self._load(found)
            return self._table.status(newest.name, newest.version)

    def unload(self, name: str) -> None:
        """Take a model out of service until it is loaded again by name. Raises NotFoundError."""
        with self._one_at_a_time:
            self._table.unload(name)
            self._unloaded.add(name)

    def poll(self) -> None:
        """Look once: load what is new or has changed and has stopped changing, forget what is gone."""
        with self._one_at_a_time:
            before = self._last
            self._see()
            for found in self.inventory.models:
                is_still = before.get((found.name, found.version)) == found.stamp
                if is_still and self._has_changed(found) and found.name not in self._unloaded:
                    self._load(found)
            self._forget_missing()

    def _see(self) -> None:
        self.inventory = self._look()
        self._last = {(found.name, found.version): found.stamp for found in self.inventory.models}

    def _has_changed(self, found: FoundModel) -> bool:
        tried = self._tried.get((found.name, found.version))
        return tried is None or tried.stamp != found.stamp

    def _load(self, found: FoundModel) -> Exception | None:
        self._tried[found.name, found.version] = found
        self._table.loading(found)
        _log.info("loading %s version %s (%s)", found.name, found.version, found.kind)
        try:
            opened = self._open(found)
        except Exception as error:
            is_expected = isinstance(error, VtkError)
            reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
            _log.error("%s %s was not loaded: %s", found.name, found.version, reason, exc_info=not is_expected)
            # Clients see the reason; where the folder lies is not theirs to know.
            self._table.fail(found, reason.replace(str(found.path), found.name))
            return error
        if not self._table.put(found, opened):
            opened.close()
        return None

    def _forget_missing(self) -> None:
        """A folder that is being replaced is gone for a moment: only what two looks in a row miss is gone."""
        missing = {key for key, found in self._tried.items() if not found.path.exists()}
        for key in missing & self._missing:
            _log.info("%s %s is gone from the model folder", *key)
            del self._tried[key]
            self._unloaded.discard(key[0])
            self._table.remove(*key)
        self._missing = missing


class Periodic:
    """Calls `action` every `interval` seconds on a thread of its own until `close`; a failure is told in the log."""

    def __init__(self, action: Callable[[], None], interval: float, name: str) -> None:
        self._action = action
        self._interval = interval
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the call in progress."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            self._act()

    def _act(self) -> None:
        try:
            self._action()
        except Exception:
            _log.exception("%s failed; it is tried again", self._thread.name)


def _newest_first(found: FoundModel) -> tuple[bool, str, int]:
    """Vision before language, whose KV cache takes what is left; of one model the newest version first."""
    return found.kind != "vision", found.name, -int(found.version)
