"""What is kept of the traffic, for how long, and who may read it."""

from __future__ import annotations

import json
import random
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.serving.traffic import (
    HALF_LIFE,
    MAX_PREFIX_TOKENS,
    MAX_PREFIXES,
    MAX_SIZES,
    MIN_PREFIX_TOKENS,
    TrafficProfile,
)


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


def prompt(seed: int, length: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(50_000) for _ in range(length)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home/traffic.json"


def test_the_prefix_that_two_prompts_share_is_kept(path: Path) -> None:
    profile = TrafficProfile(path)
    shared = prompt(0, 100)
    profile.record_prompt("m", shared + prompt(1, 20))
    assert profile.prefixes("m") == []
    profile.record_prompt("m", shared + prompt(2, 50))
    assert profile.prefixes("m") == [shared]
    assert profile.prefixes("other") == []


def test_what_was_asked_once_is_not_written(path: Path) -> None:
    profile = TrafficProfile(path)
    secret = prompt(3, 200)
    profile.record_prompt("m", secret)
    profile.save()
    assert json.loads(path.read_text())["prefixes"] == []
    assert str(secret[100]) not in path.read_text()


def test_a_short_common_beginning_does_not_swallow_long_prefixes(path: Path) -> None:
    """Every chat begins alike; only a prefix that is most of what was kept takes its place."""
    profile = TrafficProfile(path)
    head = prompt(0, 40)
    first, second = head + prompt(1, 400), head + prompt(2, 400)
    for _ in range(2):
        profile.record_prompt("m", first)
        profile.record_prompt("m", second)
    assert sorted(profile.prefixes("m")) == sorted([first, second])


def test_the_most_frequent_comes_first_and_old_counts_fade(path: Path) -> None:
    clock = Clock()
    profile = TrafficProfile(path, clock=clock)
    often, seldom = prompt(1, 64), prompt(2, 64)
    for _ in range(8):
        profile.record_prompt("m", often)
    for _ in range(3):
        profile.record_prompt("m", seldom)
    assert profile.prefixes("m") == [often, seldom]
    clock.now += 2 * HALF_LIFE
    profile.record_prompt("m", seldom)
    profile.record_prompt("m", seldom)
    assert profile.prefixes("m") == [seldom, often]


def test_short_prompts_are_not_worth_a_place(path: Path) -> None:
    profile = TrafficProfile(path)
    for _ in range(3):
        profile.record_prompt("m", prompt(0, MIN_PREFIX_TOKENS - 1))
    assert profile.prefixes("m") == []


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 1500)), max_size=150))
def test_it_is_bounded_whatever_comes(prompts: list[tuple[int, int]]) -> None:
    profile = TrafficProfile(Path("never-saved.json"))
    for seed, length in prompts:
        for _ in range(2):
            profile.record_prompt("m", prompt(seed, length))
        profile.record_picture("m", seed + 1, length)
    found = profile.prefixes("m")
    assert len(found) <= MAX_PREFIXES
    assert all(MIN_PREFIX_TOKENS <= len(prefix) <= MAX_PREFIX_TOKENS for prefix in found)
    assert len(profile.sizes("m")) <= MAX_SIZES


def test_a_newcomer_takes_the_place_of_the_least_frequent(path: Path) -> None:
    profile = TrafficProfile(path)
    for seed in range(MAX_PREFIXES):
        for _ in range(1 + (seed > 0)):
            profile.record_prompt("m", prompt(seed, 40))
    assert len(profile.prefixes("m")) == MAX_PREFIXES - 1
    for _ in range(3):
        profile.record_prompt("m", prompt(1000, 40))
    assert profile.prefixes("m")[0] == prompt(1000, 40)
    assert len(profile.prefixes("m")) == MAX_PREFIXES


def test_it_survives_a_restart(path: Path) -> None:
    clock = Clock()
    profile = TrafficProfile(path, clock=clock)
    for seed in (1, 1, 1, 2, 2):
        profile.record_prompt("m", prompt(seed, 64))
        profile.record_picture("v", 640, 480 + seed)
    profile.save()
    again = TrafficProfile(path, clock=clock)
    assert again.prefixes("m") == profile.prefixes("m") == [prompt(1, 64), prompt(2, 64)]
    assert again.sizes("v") == [(640, 481), (640, 482)]
    again.record_prompt("m", prompt(2, 64))
    again.record_prompt("m", prompt(2, 64))
    assert again.prefixes("m")[0] == prompt(2, 64)


def test_only_its_owner_may_read_it(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("{}")
    path.chmod(0o644)
    profile = TrafficProfile(path)
    profile.record_picture("v", 1, 1)
    profile.save()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_it_is_written_only_when_something_came(path: Path) -> None:
    profile = TrafficProfile(path)
    profile.save()
    assert not path.exists()
    profile.record_picture("v", 1, 1)
    profile.save()
    path.unlink()
    profile.save()
    assert not path.exists()


def test_switched_off_it_keeps_nothing() -> None:
    profile = TrafficProfile(None)
    for _ in range(2):
        profile.record_prompt("m", prompt(0, 100))
        profile.record_picture("v", 1, 1)
    profile.save()
    assert (profile.prefixes("m"), profile.sizes("v"), profile.is_on) == ([], [], False)


ENTRY = {"model": "m", "numbers": [1, 2], "times": 2, "score": 2.0, "seen": 0.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        '{"schema_version": 2}',
        '{"schema_version": 1}',
        json.dumps({"schema_version": 1, "prefixes": [], "sizes": [{**ENTRY, "numbers": [1, 2, 3]}]}),
        json.dumps({"schema_version": 1, "prefixes": [{**ENTRY, "numbers": [-1]}], "sizes": []}),
        json.dumps({"schema_version": 1, "prefixes": [{**ENTRY, "numbers": [1 << 80]}], "sizes": []}),
        json.dumps({"schema_version": 1, "prefixes": [{"model": "m"}], "sizes": []}),
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_told_and_starts_empty(text: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.write_text(text)
    profile = TrafficProfile(path)
    assert "is not used" in caplog.text
    assert (profile.prefixes("m"), profile.sizes("m")) == ([], [])
    profile.record_picture("v", 3, 4)
    profile.save()
    assert TrafficProfile(path).sizes("v") == [(3, 4)]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    profile = TrafficProfile(tmp_path / "file/traffic.json")
    profile.record_picture("v", 1, 1)
    profile.save()
    assert "was not written" in caplog.text


def test_a_file_without_an_end_is_not_read_to_it(caplog: pytest.LogCaptureFixture) -> None:
    assert TrafficProfile(Path("/dev/zero")).sizes("v") == []
    assert "larger than" in caplog.text
