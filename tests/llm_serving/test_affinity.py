"""Which cores compute."""

import os
import threading
from pathlib import Path

import pytest

from vtk.errors import UsageError
from vtk.llm_serving.affinity import parse_cpus, pinned
from vtk.llm_serving.args import EngineArgs

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot bind threads to cores")


def test_lists_ranges_and_nodes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: set(range(16)))
    assert parse_cpus("0-3,8") == {0, 1, 2, 3, 8}
    assert parse_cpus(" 5 ") == {5}


def test_a_numa_node_is_its_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    nodes = tmp_path
    (nodes / "node1").mkdir()
    (nodes / "node1/cpulist").write_text("4-5,7\n")
    monkeypatch.setattr("vtk.llm_serving.affinity._NODES", nodes)
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: set(range(16)))
    assert parse_cpus("node1") == {4, 5, 7}
    with pytest.raises(UsageError, match="no NUMA node 'node2'"):
        parse_cpus("node2")
    with pytest.raises(UsageError, match="no NUMA node"):
        parse_cpus("node1/../node1")


@pytest.mark.parametrize("text", ["", "a", "1,", "1-", "-1", "0x1", "99999", "3-1"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cpu_affinity"):
        parse_cpus(text)


def test_threads_started_inside_are_bound_and_the_caller_is_free_again() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    seen: list[set[int]] = []
    with pinned(frozenset({core})):
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == before


def test_more_threads_than_cores_are_refused() -> None:
    core = str(min(os.sched_getaffinity(0)))
    assert EngineArgs(cpu_affinity=core, num_threads=1).cpus == {int(core)}
    with pytest.raises(UsageError, match="num_threads is 2, but cpu_affinity names 1 cores"):
        EngineArgs(cpu_affinity=core, num_threads=2)
