"""The arbiter between real threads. What it decides is tested in test_turns.py; here, that nobody is lost."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from vtk.errors import DeadlineError, UsageError
from vtk.serving.arbiter import Arbiter


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.001)


@contextmanager
def running(*targets: Callable[[], None]) -> Iterator[None]:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def no() -> bool:
    return False


def yes() -> bool:
    return True


def test_one_holder_at_a_time_whatever_happens_in_a_turn() -> None:
    """A storm of engines and models: some turns fail, some are too late, and everybody gets on."""
    arbiter = Arbiter(max_itl=0.05)
    inside: list[int] = []
    done = {"language": 0, "vision": 0, "late": 0}
    lock = threading.Lock()

    def hold(kind: str, number: int, rng: random.Random) -> None:
        inside.append(number)
        assert inside == [number]
        time.sleep(rng.random() / 2000)
        inside.remove(number)
        with lock:
            done[kind] += 1
        if rng.random() < 0.1:
            raise ArithmeticError

    def engine(number: int) -> None:
        rng, seat = random.Random(number), arbiter.language()
        for _ in range(100):
            try:
                with seat.step(lambda: rng.random() < 0.8):
                    hold("language", number, rng)
            except ArithmeticError:
                pass
            if rng.random() < 0.2:
                seat.rest()
        seat.rest()

    def model(number: int) -> None:
        rng = random.Random(number)
        for _ in range(100):
            deadline = time.monotonic() + 0.002 if rng.random() < 0.1 else None
            try:
                with arbiter.vision_turn(seconds=rng.random() / 1000, deadline=deadline) as turn:
                    hold("vision", number, rng)
                    while rng.random() < 0.3 and turn.may_go_on(0.0005):
                        time.sleep(0.0005)
            except ArithmeticError:
                pass
            except DeadlineError:
                with lock:
                    done["late"] += 1

    targets = [lambda i=i: engine(i) for i in range(3)] + [lambda i=i: model(i) for i in range(3, 8)]  # type: ignore[misc]
    with running(*targets):
        pass
    snapshot = arbiter.snapshot()
    assert (snapshot.language_turns, snapshot.vision_turns) == (done["language"], done["vision"])
    assert done["language"] == 300
    assert done["vision"] + done["late"] == 500
    assert snapshot.num_waiting == 0
    assert 0 <= snapshot.idle_share < 1
    assert snapshot.vision_waited > 0
    assert snapshot.language_busy + snapshot.vision_busy <= snapshot.elapsed
    assert not arbiter._granted


def test_who_is_too_late_leaves_the_queue_and_says_so() -> None:
    arbiter = Arbiter()
    with arbiter.vision_turn(seconds=0.1):
        with (
            pytest.raises(DeadlineError, match="before the deadline"),
            arbiter.vision_turn(seconds=0.1, deadline=time.monotonic() + 0.01),
        ):
            pytest.fail("two at once")
        assert arbiter.snapshot().num_waiting == 0
    with arbiter.vision_turn(seconds=0.1, deadline=time.monotonic() + 10):
        assert arbiter.snapshot().vision_turns == 2


def test_pictures_wait_for_an_engine_between_two_steps_until_it_rests() -> None:
    """The engine is behind its share, so the next turn is its own; as soon as it has nothing to do they go."""
    arbiter = Arbiter(max_itl=0.2)
    seat = arbiter.language()
    with seat.step(yes):
        assert arbiter.vision_room() == float("inf")
    assert 0.17 < arbiter.vision_room() <= 0.18
    went = threading.Event()

    def show() -> None:
        with arbiter.vision_turn(seconds=0.17):
            went.set()

    with running(show):
        wait_until(lambda: arbiter.snapshot().num_waiting == 1)
        assert not went.is_set()
        seat.rest()
        assert went.wait(20)
    assert arbiter.vision_room() == float("inf")


def test_a_step_that_leaves_no_stream_behind_leaves_all_the_room() -> None:
    arbiter = Arbiter()
    with arbiter.language().step(no):
        pass
    assert arbiter.vision_room() == float("inf")


def test_a_snapshot_counts_every_second() -> None:
    now = 0.0
    arbiter = Arbiter(clock=lambda: now)
    seat = arbiter.language()
    assert arbiter.snapshot().idle_share == 1
    with seat.step(no):
        now = 3.0
    seat.rest()
    now = 4.0
    with arbiter.vision_turn(seconds=1.0) as turn:
        now = 6.0
        assert turn.may_go_on(1.0)
        now = 7.0
    now = 8.0
    snapshot = arbiter.snapshot()
    assert (snapshot.elapsed, snapshot.language_busy, snapshot.vision_busy) == (8.0, 3.0, 3.0)
    assert snapshot.idle_share == 0.25
    assert (snapshot.language_turns, snapshot.vision_turns) == (1, 1)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_values_that_cannot_be_are_refused(share: float) -> None:
    with pytest.raises(UsageError, match="vision_share must be between 0 and 1"):
        Arbiter(vision_share=share)
    with pytest.raises(UsageError, match="max_itl must be above 0"):
        Arbiter(max_itl=0.0)
