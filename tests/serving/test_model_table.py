"""Leases: who has a model keeps it, whatever happens to its name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.errors import NotFoundError, UnavailableError
from vtk.serving.model_folder import FoundModel
from vtk.serving.model_table import ModelStatus, ModelTable, OpenedModel

SOON = 10.0


@dataclass(eq=False)
class FakeModel:
    label: str
    closed: threading.Event = field(default_factory=threading.Event)


def found(name: str = "mean", version: str = "1", kind: Any = "vision") -> FoundModel:
    return FoundModel(name, version, kind, Path(name) / version, ())


def opened(entry: FoundModel, close: Callable[[], None] | None = None) -> OpenedModel:
    model: Any = FakeModel(f"{entry.name} {entry.version}")
    facts = ModelStatus(entry.name, entry.version, entry.kind, state="ready", bytes=7)
    return OpenedModel(model, facts, close or model.closed.set)


def put(table: ModelTable, entry: FoundModel | None = None) -> Any:
    entry = entry or found()
    result = opened(entry)
    assert table.put(entry, result)
    return result.model


def states(table: ModelTable) -> list[tuple[str, str]]:
    return [(status.version, status.state) for status in table.statuses()]


def test_the_newest_ready_version_answers_and_each_by_its_number() -> None:
    table = ModelTable()
    for version in ("9", "10", "2"):
        put(table, found(version=version))
    table.fail(found(version="11"), "damaged")
    with table.lease("vision", "mean") as lease, table.lease("vision", "mean", "2") as second:
        assert (lease.facts.version, second.facts.version) == ("10", "2")
    assert states(table) == [("2", "ready"), ("9", "ready"), ("10", "ready"), ("11", "failed")]


def test_a_model_under_lease_is_closed_when_the_last_lease_ends() -> None:
    table = ModelTable()
    model = put(table)
    with table.lease("vision", "mean") as first:
        with table.lease("vision", "mean"):
            table.unload("mean")
            assert states(table) == [("1", "draining")]
            with pytest.raises(UnavailableError, match="'mean' is draining"), table.lease("vision", "mean"):
                pass
        assert first.model is model
        assert not table.wait_closed(0)
        assert not model.closed.is_set()
    assert table.wait_closed(SOON)
    assert model.closed.is_set()
    (status,) = table.statuses()
    assert (status.state, status.bytes) == ("unloaded", 0)


def test_a_swap_is_seen_by_new_leases_only() -> None:
    table = ModelTable()
    old = put(table)
    with table.lease("vision", "mean") as before:
        new = put(table)
        with table.lease("vision", "mean") as after:
            assert (before.model, after.model) == (old, new)
        assert not old.closed.is_set()
    assert table.wait_closed(SOON)
    assert old.closed.is_set()
    assert not new.closed.is_set()


def test_a_failed_load_leaves_the_old_one_serving_and_says_why() -> None:
    table = ModelTable()
    table.loading(found())
    assert states(table) == [("1", "loading")]
    model = put(table)
    table.loading(found())
    table.fail(found(), "the new files are damaged")
    (status,) = table.statuses()
    assert (status.state, status.reason) == ("ready", "the new files are damaged")
    with table.lease("vision", "mean") as lease:
        assert lease.model is model
    put(table)
    assert table.statuses()[0].reason == ""


def test_names_versions_and_kinds_that_are_not_served() -> None:
    table = ModelTable()
    put(table)
    put(table, found("smol", kind="llm"))
    cases: list[tuple[Any, str, str | None, str]] = [
        ("vision", "other", None, r"No vision model named 'other'.*Served: mean\."),
        ("vision", "smol", None, r"No vision model named 'smol'"),
        ("llm", "mean", None, r"No language model named 'mean'.*Served: smol\."),
        ("vision", "mean", "7", r"no version '7'.*It has: 1\."),
    ]
    for kind, name, version, message in cases:
        with pytest.raises(NotFoundError, match=message), table.lease(kind, name, version):
            pass


def test_draining_waits_for_leases_and_takes_no_more() -> None:
    table = ModelTable()
    model = put(table)
    lease = table.lease("vision", "mean")
    lease.__enter__()
    assert not table.drain(0)
    assert states(table) == [("1", "draining")]
    with pytest.raises(UnavailableError, match="shutting down"), table.lease("vision", "mean"):
        pass
    ended = threading.Thread(target=lambda: lease.__exit__(None, None, None))
    ended.start()
    assert table.drain(SOON)
    ended.join()
    assert not model.closed.is_set()
    assert table.close(SOON)
    assert model.closed.is_set()


def test_what_is_ready_too_late_is_not_taken() -> None:
    table = ModelTable()
    table.drain(0)
    assert not table.put(found(), opened(found()))


def test_a_model_that_cannot_be_closed_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    table = ModelTable()
    table.put(found(), opened(found(), fail))
    assert table.close(SOON)
    assert "closing the model mean version 1 failed" in caplog.text


def test_the_end_does_not_wait_for_a_lease_that_does_not_end() -> None:
    table = ModelTable()
    model = put(table)
    with table.lease("vision", "mean"):
        assert not table.close(0)
        assert not model.closed.is_set()
    assert table.wait_closed(SOON)


steps = st.lists(st.sampled_from(["put", "lease", "end", "unload", "fail"]), max_size=30)


@settings(deadline=None, max_examples=60)
@given(steps)
def test_no_lease_ever_holds_a_closed_model_and_nothing_stays_open(steps: list[str]) -> None:
    table = ModelTable()
    models: list[Any] = []
    leases: list[Any] = []
    held: list[Any] = []
    for step in steps:
        if step == "put":
            models.append(put(table))
        elif step == "lease":
            lease = table.lease("vision", "mean")
            try:
                held.append(lease.__enter__().model)
                leases.append(lease)
                assert held[-1] is models[-1]
            except (NotFoundError, UnavailableError):
                continue
        elif step == "end" and leases:
            held.pop(0)
            leases.pop(0).__exit__(None, None, None)
        elif step == "fail":
            table.fail(found(), "damaged")
        elif step == "unload" and table.statuses():
            table.unload("mean")
        assert not any(model.closed.is_set() for model in held)
    for lease in leases:
        lease.__exit__(None, None, None)
    assert table.close(SOON)
    assert all(model.closed.is_set() for model in models)
