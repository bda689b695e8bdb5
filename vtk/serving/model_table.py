"""Which open model answers to which name, and who is using it: a model is closed after its last lease, never before."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from vtk.errors import NotFoundError, UnavailableError
from vtk.serving.settings import KIND_NAMES, Kind

if TYPE_CHECKING:
    from vtk.serving.language_model import LanguageModel
    from vtk.serving.model_folder import FoundModel
    from vtk.serving.vision_model import VisionModel

State = Literal["loading", "ready", "draining", "failed", "unloaded"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelStatus:
    """One version of a model as `/v1/models` and the repository index tell it.

    reason: why it is not ready, or, for a ready one, why its last reload failed. bytes: of the memory budget.
    source_sha256, tensor_digest: of the checkpoint that it was made from. created: seconds since the epoch when it was
    loaded, 0.0 if it never was.
    """

    name: str
    version: str
    kind: Kind
    task: str = ""
    state: State = "loading"
    reason: str = ""
    bytes: int = 0
    backend: str = ""
    device: str = ""
    precision: str = ""
    source_sha256: str = ""
    tensor_digest: str = ""
    created: float = 0.0


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model that is ready to serve. close: drains it, gives its memory back; called once, on a thread of its own."""

    model: VisionModel | LanguageModel
    facts: ModelStatus
    close: Callable[[], None]


@dataclass(eq=False)
class _Instance:
    opened: OpenedModel
    leases: int = 0
    is_retired: bool = False


@dataclass(eq=False)
class _Row:
    status: ModelStatus
    instance: _Instance | None = None
    retired: list[_Instance] = field(default_factory=list)


class ModelTable:
    """Every method may be called from any thread; none but `wait_closed` waits for anything."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rows: dict[tuple[str, str], _Row] = {}
        self._open: set[_Instance] = set()
        self._num_leases = 0
        self._is_draining = False

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @contextmanager
    def lease(self, kind: Kind, name: str, version: str | None = None) -> Iterator[OpenedModel]:
        """The newest ready version, or that one; it stays open until the block ends, whatever happens to its name.

        Raises NotFoundError for a name, version or kind that is not served, UnavailableError for one that is not ready.
        """
        with self._changed:
            instance = self._find(kind, name, version)
            instance.leases += 1
            self._num_leases += 1
        try:
            yield instance.opened
        finally:
            with self._changed:
                instance.leases -= 1
                self._num_leases -= 1
                self._close_if_unused(instance)
                self._changed.notify_all()

    def statuses(self) -> list[ModelStatus]:
        """One for each version, by name and then ascending version."""
        with self._changed:
            keys = sorted(self._rows, key=lambda key: (key[0], int(key[1])))
            return [self._rows[key].status for key in keys]

    def status(self, name: str, version: str) -> ModelStatus:
        """Of one version that is known."""
        with self._changed:
            return self._rows[name, version].status

    def loading(self, found: FoundModel) -> None:
        """A load has begun; what serves under that name and version goes on serving."""
        with self._changed:
            row = self._row(found)
            if row.instance is None:
                row.status = ModelStatus(found.name, found.version, found.kind)

    def put(self, found: FoundModel, opened: OpenedModel) -> bool:
        """From now on new leases get this one; the old one, if any, is closed when its last lease ends.

        False, and nothing is changed, when everything is being closed.
        """
        with self._changed:
            if self._is_draining:
                return False
            row = self._row(found)
            old, row.instance = row.instance, _Instance(opened)
            self._open.add(row.instance)
            row.status = opened.facts
            if old is not None:
                self._retire(row, old)
            return True

    def fail(self, found: FoundModel, reason: str) -> None:
        """A load has failed; what served before still serves, and its status says why it is not the new one."""
        with self._changed:
            row = self._row(found)
            if row.instance is None:
                row.status = replace(row.status, state="failed", reason=reason)
            else:
                row.status = replace(row.status, reason=reason)

    def unload(self, name: str) -> None:
        """Take every version out of service. Raises NotFoundError."""
        with self._changed:
            for row in self._versions(name):
                self._take_out(row)

    def remove(self, name: str, version: str) -> None:
        """Take one version out of service and forget it."""
        with self._changed:
            row = self._rows.pop((name, version), None)
            if row is not None:
                self._take_out(row)

    def drain(self, timeout: float) -> bool:
        """Refuse new leases and wait until those that exist have ended; False if `timeout` seconds were too few."""
        with self._changed:
            self._is_draining = True
            for row in self._rows.values():
                if row.instance is not None:
                    row.status = replace(row.status, state="draining", reason="The server is shutting down.")
            return self._changed.wait_for(lambda: self._num_leases == 0, timeout)

    def close(self, timeout: float) -> bool:
        """Close every model, those under lease as soon as it ends; False if `timeout` seconds were too few."""
        with self._changed:
            self._is_draining = True
            for row in self._rows.values():
                self._take_out(row)
        return self.wait_closed(timeout)

    def wait_closed(self, timeout: float) -> bool:
        """Wait until no model is open that is out of service; False if `timeout` seconds were too few."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(item.is_retired for item in self._open), timeout)

    def _find(self, kind: Kind, name: str, version: str | None) -> _Instance:
        if self._is_draining:
            raise UnavailableError("The server is shutting down.", hint="Try another one.")
        rows = [row for row in self._versions(name, kind) if version in (None, row.status.version)]
        if not rows:
            versions = ", ".join(row.status.version for row in self._versions(name, kind))
            raise NotFoundError(f"The model '{name}' has no version '{version}'.", hint=f"It has: {versions}.")
        for row in reversed(rows):
            if row.instance is not None:
                return row.instance
        status = rows[-1].status
        raise UnavailableError(f"The model '{name}' is {status.state}.", hint=status.reason or None)

    def _versions(self, name: str, kind: Kind | None = None) -> list[_Row]:
        """Ascending; NotFoundError for none."""
        rows = [row for (found, _), row in self._rows.items() if found == name and kind in (None, row.status.kind)]
        if not rows:
            served = sorted({row.status.name for row in self._rows.values() if kind in (None, row.status.kind)})
            what = "model" if kind is None else KIND_NAMES[kind]
            raise NotFoundError(f"No {what} named '{name}' is served.", hint=f"Served: {', '.join(served) or 'none'}.")
        return sorted(rows, key=lambda row: int(row.status.version))

    def _row(self, found: FoundModel) -> _Row:
        status = ModelStatus(found.name, found.version, found.kind)
        return self._rows.setdefault((found.name, found.version), _Row(status))

    def _take_out(self, row: _Row) -> None:
        if row.instance is not None:
            instance, row.instance = row.instance, None
            row.status = replace(row.status, state="draining", reason="It was unloaded.")
            self._retire(row, instance)
        elif row.status.state != "draining":
            row.status = replace(row.status, state="unloaded", reason="It was unloaded.")

    def _retire(self, row: _Row, instance: _Instance) -> None:
        row.retired.append(instance)
        instance.is_retired = True
        self._close_if_unused(instance)

    def _close_if_unused(self, instance: _Instance) -> None:
        if instance.is_retired and instance.leases == 0:
            name = f"vtk-close-{instance.opened.facts.name}"
            threading.Thread(target=self._close, args=(instance,), name=name, daemon=True).start()

    def _close(self, instance: _Instance) -> None:
        started = time.monotonic()
        facts = instance.opened.facts
        try:
            instance.opened.close()
        except Exception:
            _log.exception("closing the model %s version %s failed", facts.name, facts.version)
        else:
            _log.info("closed %s version %s in %.2f s", facts.name, facts.version, time.monotonic() - started)
        with self._changed:
            self._open.discard(instance)
            for row in self._rows.values():
                self._forget(row, instance)
            self._changed.notify_all()

    def _forget(self, row: _Row, instance: _Instance) -> None:
        if instance in row.retired:
            row.retired.remove(instance)
            if row.status.state == "draining" and row.instance is None and not row.retired:
                row.status = replace(row.status, state="unloaded", bytes=0)
