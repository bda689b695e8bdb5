"""One budget: nobody holds more than there is, and a refusal has both numbers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.errors import UsageError
from vtk.serving.memory import MIB, Footprint, MemoryBudget, Reservation, available_memory, memory_for
from vtk.serving.settings import RuntimeSettings


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    budget = MemoryBudget(100 * MIB)
    budget.reserve("toy 1", Footprint(weights=60 * MIB))
    with pytest.raises(UsageError, match=r"smol 1 needs 50\.0 MiB and 40\.0 of 100\.0 MiB are free") as refused:
        budget.reserve("smol 1", Footprint(weights=20 * MIB, kv=30 * MIB))
    assert budget.free == 40 * MIB
    assert all(flag in str(refused.value) for flag in ("--memory", "--gpu-memory-utilization"))


def test_what_was_measured_takes_the_place_of_the_estimate() -> None:
    budget = MemoryBudget(100 * MIB)
    reservation = budget.reserve("toy 1", Footprint(weights=20 * MIB, activations=5 * MIB, kv=10 * MIB))
    reservation.measure(50 * MIB)
    assert reservation.footprint == Footprint(weights=20 * MIB, activations=30 * MIB, kv=10 * MIB)
    reservation.measure(0)
    assert reservation.footprint.activations == 30 * MIB, "memory that was seen once may be needed again"
    with pytest.raises(UsageError, match=r"needs 130\.0 MiB and 100\.0 of 100\.0"):
        reservation.measure(120 * MIB)
    assert budget.free == 40 * MIB


def test_memory_is_given_back_once() -> None:
    budget = MemoryBudget(10)
    first, second = budget.reserve("a", Footprint(4)), budget.reserve("a", Footprint(4))
    first.release()
    first.release()
    assert budget.free == 6
    second.release()
    assert budget.free == 10


@given(st.lists(st.one_of(st.integers(0, 60), st.integers(-5, -1)), max_size=40))
def test_the_parts_never_exceed_the_whole(steps: list[int]) -> None:
    """A number at or above 0 asks for that much; one below gives back the reservation at that place."""
    budget = MemoryBudget(100)
    held: list[Reservation] = []
    for step in steps:
        if step < 0:
            if len(held) >= -step:
                held.pop(step).release()
        elif step <= budget.free:
            held.append(budget.reserve("x", Footprint(weights=step)))
        else:
            with pytest.raises(UsageError):
                budget.reserve("x", Footprint(weights=step))
        assert budget.free == 100 - sum(item.footprint.total for item in held)
        assert 0 <= budget.free <= 100


def test_of_many_who_ask_at_once_as_many_get_as_fit() -> None:
    budget = MemoryBudget(5)
    start = threading.Barrier(20)
    got: list[Reservation] = []

    def ask() -> None:
        start.wait()
        try:
            got.append(budget.reserve("x", Footprint(weights=1)))
        except UsageError:
            return

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 5
    assert budget.free == 0


def test_the_table_says_who_holds_what() -> None:
    budget = MemoryBudget(1000 * MIB)
    budget.reserve("toy-deim 1", Footprint(weights=20 * MIB, activations=5 * MIB))
    budget.reserve("smol 1", Footprint(weights=100 * MIB, activations=10 * MIB, kv=512 * MIB))
    budget.reserve("sam3 1", Footprint(weights=50 * MIB, cache=100 * MIB))
    assert budget.explain().splitlines() == [
        "model        weights  activations     KV  cache    total",
        "toy-deim 1      20.0          5.0    0.0    0.0     25.0",
        "smol 1         100.0         10.0  512.0    0.0    622.0",
        "sam3 1          50.0          0.0    0.0  100.0    150.0",
        "free                                               203.0",
        "budget, MiB                                      1,000.0",
    ]


def test_a_container_limits_the_machine(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2000 kB\nMemAvailable: 1000 kB\n")
    assert available_memory(meminfo, tmp_path) == 1000 << 10
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(meminfo, tmp_path) == 1000 << 10
    (tmp_path / "memory.max").write_text("51000\n")
    assert available_memory(meminfo, tmp_path) == 50000
    (tmp_path / "memory.max").write_text("10\n")
    assert available_memory(meminfo, tmp_path) == 0


def test_the_budget_is_what_was_named_or_a_share_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtk.serving.memory.available_memory", lambda: 1000)
    assert memory_for(RuntimeSettings()) == 900
    assert memory_for(RuntimeSettings(gpu_memory_utilization=0.5)) == 500
    assert memory_for(RuntimeSettings(memory_bytes=1000)) == 1000
    with pytest.raises(UsageError, match=r"0\.0 MiB are available"):
        memory_for(RuntimeSettings(memory_bytes=1001))
