"""The rules of the arbiter over a simulated device: no threads, no waiting, time is only a number of seconds."""

import heapq
import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from vtk.serving.turns import MARGIN, EngineState, Turn, TurnRules, UpperEstimate

MAX_ITL = 0.2
LIMIT = MAX_ITL * (1 - MARGIN)
ADMITTED = MAX_ITL * (1 - MARGIN / 2)  # batches are planned into LIMIT, and may go beside a step up to here
TINY = 1e-5  # how long pictures that always wait need to ask again


class Simulation:
    """Engines that always decode and pictures that always wait, each behaving as its real counterpart does."""

    def __init__(self, *, max_itl: float = MAX_ITL, vision_share: float = 0.5) -> None:
        self.rules = TurnRules(max_itl, vision_share)
        self.now = 0.0
        self.ends: dict[EngineState, list[float]] = {}
        self.batches: list[tuple[float, float]] = []  # when it began, how long it took
        self.vision_waits: list[float] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._then: dict[Turn, Callable[[], None]] = {}

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
            self.dispatch()

    def dispatch(self) -> None:
        chosen = self.rules.start_next(self.now)
        if chosen is not None:
            self._then.pop(chosen)()
        elif self.rules.holder is None and self.rules.waiting:
            busy = {turn.engine for turn in self.rules.waiting}
            assert busy == {None}, "an engine waits for a device that is free"
            assert self.rules._active, "pictures wait for nobody"

    def engine(self, steps: Callable[[int], float], gap: float, count: int = 10**9) -> EngineState:
        """An engine that makes `count` steps of steps(0), steps(1), … and asks again `gap` after each."""
        engine = EngineState()
        self.ends[engine] = []

        def ask() -> None:
            turn = Turn(self.now, engine)
            self._then[turn] = lambda: self.at(self.now + steps(len(self.ends[engine])), end)
            self.rules.arrive(turn)

        def end() -> None:
            self.rules.finish(self.now, is_decoding=True)
            self.ends[engine].append(self.now)
            self.at(self.now + gap, ask if len(self.ends[engine]) < count else lambda: self.rules.rest(engine))

        self.at(gap, ask)
        return engine

    def pictures(self, sizes: Sequence[float], start: float = 0.0) -> None:
        """Batches without end, each of the longest of `sizes` (seconds) that fits beside a step, else the shortest."""

        def choose() -> float:
            return max((size for size in sizes if size <= self.rules.room()), default=min(sizes))

        def ask() -> None:
            turn = Turn(self.now, seconds=choose())
            self._then[turn] = lambda: begin(turn, turn.seconds)
            self.rules.arrive(turn)

        def begin(turn: Turn, seconds: float) -> None:
            self.vision_waits.append(self.now - turn.arrived)
            self.run_batch(seconds, lambda: end(turn))

        def end(turn: Turn) -> None:
            self.rules.book(self.now)
            if self.rules.may_go_on(choose(), self.now):
                self.run_batch(choose(), lambda: end(turn))
            else:
                self.rules.finish(self.now)
                self.at(self.now + TINY, ask)

        self.at(start, ask)

    def run_batch(self, seconds: float, then: Callable[[], None]) -> None:
        self.batches.append((self.now, seconds))
        self.at(self.now + seconds, then)

    def itls(self, engine: EngineState) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.ends[engine])]


def milliseconds(least: int, most: int) -> st.SearchStrategy[float]:
    return st.integers(least, most).map(lambda value: value / 1000)


durations = milliseconds(5, 300)
gaps = st.sampled_from([0.0, 0.00005, 0.0009])
several = st.lists(durations, min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(step=durations, gap=gaps, sizes=several)
def test_tokens_come_in_time_if_the_smallest_batch_fits_beside_a_step(
    step: float, gap: float, sizes: list[float]
) -> None:
    assume(min(sizes) + step <= LIMIT)
    simulation = Simulation()
    engine = simulation.engine(lambda _: step, gap)
    simulation.pictures(sizes, start=step * 2)
    simulation.run(10)
    assert max(simulation.itls(engine)) <= MAX_ITL
    assert simulation.batches


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(milliseconds(20, 60), min_size=2, max_size=3), gap=gaps, sizes=several)
def test_tokens_of_several_engines_come_in_time(steps: list[float], gap: float, sizes: list[float]) -> None:
    assume(min(sizes) + sum(steps) <= LIMIT)
    simulation = Simulation()
    engines = [simulation.engine(lambda _, step=step: step, gap) for step in steps]  # type: ignore[misc]
    simulation.pictures(sizes, start=1.0)
    simulation.run(10)
    for engine in engines:
        assert max(simulation.itls(engine)) <= MAX_ITL
    assert len(simulation.batches) > 20


@settings(deadline=None, max_examples=60)
@given(base=milliseconds(5, 60), gap=gaps, batch=milliseconds(1, 60))
def test_steps_of_changing_length_are_in_time_once_their_longest_was_seen(
    base: float, gap: float, batch: float
) -> None:
    """The estimate rises at once and falls slowly, so that steps that come again within a few are foreseen."""
    lengths = [base * (1 + i % 3 / 4) for i in range(30)]
    assume(max(lengths) + batch <= LIMIT)
    simulation = Simulation()
    engine = simulation.engine(lambda index: lengths[index % 30], gap)
    simulation.pictures([batch], start=sum(lengths[:4]) + 0.005)
    simulation.run(10)
    assert max(simulation.itls(engine)) <= MAX_ITL


@settings(deadline=None, max_examples=60)
@given(step=durations, gap=gaps, sizes=several, share=st.sampled_from([0.2, 0.5, 0.8]))
@example(step=0.148, gap=0.0, sizes=[0.033], share=0.2)  # one batch beside each step is less than the share
@example(step=0.148, gap=0.0, sizes=[0.043], share=0.5)  # the shortest batch that fits beside no step
def test_neither_side_starves(step: float, gap: float, sizes: list[float], share: float) -> None:
    """However long the steps and batches: each side has its share, where max_itl lets pictures have theirs."""
    simulation = Simulation(vision_share=share)
    engine = simulation.engine(lambda _: step, gap)
    simulation.pictures(sizes)
    simulation.run(20)
    longest, shortest = max(sizes), min(sizes)
    vision = sum(seconds for _, seconds in simulation.batches) / 20
    language = len(simulation.ends[engine]) * step / 20
    slack = 2 * (longest + step + gap) / 20 + (gap / (step + gap))
    assert language >= (1 - share) - slack
    # Where batches fit beside a step, max_itl may leave room for no second one before the next step.
    fits = shortest + step <= ADMITTED
    assert vision >= (min(share, shortest / (shortest + step)) if fits else share) - slack
    # Pictures that fit wait for as many steps as their share says, then for one more.
    bound = 1 + step + (longest + step) / share * 2
    assert max(simulation.vision_waits) <= bound


@settings(deadline=None, max_examples=60)
@given(step=durations, batch=durations, share=st.sampled_from([0.2, 0.5, 0.8]))
def test_a_side_alone_has_all_of_the_device(step: float, batch: float, share: float) -> None:
    alone = Simulation(vision_share=share)
    alone.pictures([batch])
    alone.run(10)
    assert sum(seconds for _, seconds in alone.batches) >= 10 - batch
    other = Simulation(vision_share=share)
    engine = other.engine(lambda _: step, 0.0)
    other.run(10)
    assert len(other.ends[engine]) * step > 10 - 2 * step


@settings(deadline=None, max_examples=60)
@given(step=milliseconds(1, 100), batch=durations, count=st.integers(1, 50))
def test_pictures_have_the_device_to_themselves_when_the_streams_end(step: float, batch: float, count: int) -> None:
    simulation = Simulation()
    engine = simulation.engine(lambda _: step, 0.00005, count)
    simulation.pictures([batch])
    simulation.run(20)
    assert len(simulation.ends[engine]) == count
    last = simulation.ends[engine][-1]
    busy = sum(seconds for begin, seconds in simulation.batches if begin > last)
    assert busy >= 20 - last - batch - 0.001


def test_nobody_saves_up_turns_while_away() -> None:
    """After an hour of pictures alone, streams and pictures share alike from the first second on."""
    simulation = Simulation(max_itl=10.0)
    simulation.pictures([0.05])
    simulation.run(3600)
    del simulation.batches[:]
    start = simulation.now
    engine = simulation.engine(lambda _: 0.05, 0.00005)
    simulation._events = [(max(time, start), *rest) for time, *rest in simulation._events]  # type: ignore[misc]
    simulation.run(start + 2)
    assert len(simulation.ends[engine]) == pytest.approx(20, abs=2)
    assert len(simulation.batches) == pytest.approx(20, abs=2)


def test_the_earlier_deadline_goes_first() -> None:
    rules = TurnRules(MAX_ITL, 0.5)
    rules.arrive(Turn(0.0, seconds=1.0))
    rules.arrive(Turn(0.0, seconds=1.0, deadline=0.9))
    rules.arrive(Turn(0.0, seconds=1.0, deadline=0.5))
    order = []
    for _ in range(3):
        turn = rules.start_next(0.0)
        assert turn is not None
        order.append(turn.deadline)
        rules.finish(0.0)
    assert order == [0.5, 0.9, None]


def test_an_estimate_rises_at_once_and_falls_slowly() -> None:
    estimate = UpperEstimate()
    for duration, expected in ((1.0, 1.0), (2.0, 2.0), (1.0, 1.8), (1.0, 1.64)):
        estimate.add(duration)
        assert estimate.seconds == pytest.approx(expected)
