"""The value in which two prompts first differ, whole, and what kind of thing it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.server.volatile_text import common_prefix, first_difference

TAIL = ". You are a helpful assistant. Answer briefly."


@pytest.mark.parametrize(
    ("kind", "ours", "theirs"),
    [
        ("a timestamp", "2026-11-29 22:23:26", "2026-11-29 22:23:27"),
        ("a timestamp", "2026-11-29T22:23:26.120Z", "2026-11-29T22:23:26.987Z"),
        ("a timestamp", "2026-11-29T22:23:26+01:00", "2026-11-30T08:00:00+01:00"),
        ("a timestamp", "Sun Nov 29 22:23:26 UTC 2026", "Sun Nov 29 22:24:00 UTC 2026"),
        ("a timestamp", "Sun, 29 Nov 2026 22:23:26 GMT", "Mon, 30 Nov 2026 00:00:01 GMT"),
        ("a timestamp", "November 29, 2026 at 10:23 PM", "November 29, 2026 at 10:24 PM"),
        ("a timestamp", "29/11/2026, 10:23", "29/11/2026, 11:23"),
        ("a timestamp", "1796077406", "1796077507"),
        ("a timestamp", "1796077406123", "1796077406124"),
        ("a date", "2026-11-29", "2026-11-30"),
        ("a date", "29.11.2026", "30.11.2026"),
        ("a date", "November 29, 2026", "December 1, 2026"),
        ("a date", "29 Nov 2026", "30 Nov 2026"),
        ("a date", "Sunday", "Monday"),
        ("a time", "22:23", "22:24"),
        ("a time", "10:23:26 PM", "11:23:26 PM"),
        ("a UUID", "6f1e4a1e-0f33-4c3e-9d6b-0123456789ab", "6f1e4a1e-0f33-4c3e-9d6b-f123456789ab"),
        ("a random id", "9f86d081884c7d65", "9f86d081884c7d66"),
        ("a number", "41", "42"),
        ("a number", "9", "10"),
        ("a number", "12", "120"),
        ("a number", "3.50", "3.75"),
        ("text", "Alice", "Bob"),
        ("text", "Anna", "Anna2000k"),
        ("text", "élise", "éloïse"),
    ],
)
def test_values_are_named_and_found_whole(kind: str, ours: str, theirs: str) -> None:
    for one, other in ((ours, theirs), (theirs, ours)):
        found = first_difference(f"It is now {one}{TAIL}", f"It is now {other}{TAIL}")
        assert found is not None
        assert (found.kind, found.start, found.ours, found.theirs) == (kind, 10, one, other)
        assert found.same_after == len(TAIL)


def test_only_the_value_that_differs_counts() -> None:
    found = first_difference("At 2026-11-29 22:23 for Alice.", "At 2026-11-29 22:23 for Bob.")
    assert found is not None
    assert (found.kind, found.ours, found.theirs, found.same_after) == ("text", "Alice", "Bob", 1)


def test_a_number_beside_the_difference_is_not_it() -> None:
    found = first_difference("12 apples", "12 pears")
    assert found is not None
    assert (found.kind, found.start) == ("text", 3)


def test_a_prompt_that_goes_on_is_no_difference() -> None:
    assert first_difference("one two", "one two three") is None
    assert first_difference("same", "same") is None
    assert first_difference("", "x") is None


@given(st.text(), st.text(), st.text())
def test_the_common_prefix_is_the_longest(start: str, one: str, other: str) -> None:
    length = common_prefix(start + one, start + other)
    assert length >= len(start)
    ours, theirs = start + one, start + other
    assert ours[:length] == theirs[:length]
    assert length in (len(ours), len(theirs)) or ours[length] != theirs[length]


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_texts_are_put_together_again_from_the_difference(start: str, one: str, other: str) -> None:
    """Whatever the texts are: they agree before it, and behind it for as long as it says."""
    ours, theirs = start + one, start + other
    found = first_difference(ours, theirs)
    if found is None:
        assert ours.startswith(theirs) or theirs.startswith(ours)
        return
    assert found.ours != found.theirs
    for text, value in ((ours, found.ours), (theirs, found.theirs)):
        assert text[: found.start] == ours[: found.start]
        assert text[found.start :].startswith(value)
    behind = ours[found.start + len(found.ours) :], theirs[found.start + len(found.theirs) :]
    assert behind[0][: found.same_after] == behind[1][: found.same_after]
