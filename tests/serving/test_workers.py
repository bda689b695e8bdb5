"""The pool that prepares pictures: by urgency, and nothing is lost."""

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from vtk.errors import UnavailableError
from vtk.serving.workers import Workers


@pytest.fixture
def workers() -> Iterator[Workers]:
    pool = Workers(1, "test")
    yield pool
    pool.close()


def test_the_lowest_rank_goes_first_and_equals_in_order(workers: Workers) -> None:
    gate, order = threading.Event(), list[str]()
    first = workers.submit(lambda: gate.wait(20))
    jobs = [("b", 1.0), ("d", 2.0), ("c", 1.0), ("a", -float("inf"))]
    futures = [workers.submit(lambda name=name: order.append(name), rank) for name, rank in jobs]  # type: ignore[misc]
    dropped = workers.submit(lambda: order.append("x"), -1)
    assert dropped.cancel()
    gate.set()
    for future in (first, *futures):
        future.result(20)
    assert order == ["a", "b", "c", "d"]


def test_a_job_that_raises_tells_its_caller_alone(workers: Workers) -> None:
    with pytest.raises(ZeroDivisionError):
        workers.submit(lambda: 1 // 0).result(20)
    assert workers.submit(lambda: 7).result(20) == 7


def test_close_does_what_is_queued_and_takes_nothing_more() -> None:
    pool = Workers(2, "test")
    futures = [pool.submit(lambda i=i: i * i) for i in range(50)]  # type: ignore[misc]
    pool.close()
    assert [future.result(0) for future in futures] == [i * i for i in range(50)]
    assert not any(thread.is_alive() for thread in pool._threads)
    with pytest.raises(UnavailableError, match="takes no more pictures"):
        pool.submit(lambda: 1)


@pytest.mark.skipif(sys.platform != "linux", reason="nice values belong to processes here")
def test_workers_alone_step_back(workers: Workers) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    theirs = workers.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result(20)
    assert theirs == max(10, mine)
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine
