"""What kind of thing differs between two prompts: a timestamp, an id, a counter, or just other words."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_DATE = (
    rf"(?:{_WEEKDAY},? )?(?:\d{{4}}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{{2,4}}"
    rf"|{_MONTH} +\d\d?(?:st|nd|rd|th)?(?:,? \d{{4}})?|\d\d?(?:st|nd|rd|th)? {_MONTH}(?:,? \d{{4}})?)"
)
_TIME = r"\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp][Mm]\b)?(?:Z| ?[+-]\d\d:?\d\d| (?:UTC|GMT)\b)?"
_CTIME = rf"{_WEEKDAY} {_MONTH} +\d\d? \d\d:\d\d:\d\d(?: [A-Z]{{3,4}})? \d{{4}}"
_EPOCH = r"1\d{9}(?:\d{3})?(?:\.\d+)?"
_WINDOW = 96  # characters around the difference that are looked at: longer than any of these


def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9A-Za-z])(?:{pattern})(?![0-9A-Za-z])")


# The first that matches counts: a timestamp is also a date and a number.
_KINDS = (
    ("a UUID", _whole(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")),
    ("a timestamp", _whole(rf"{_CTIME}|{_DATE}(?:T|,? (?:at )?){_TIME}|{_EPOCH}")),
    ("a date", _whole(rf"{_DATE}|{_WEEKDAY}")),
    ("a time", _whole(_TIME)),
    ("a random id", _whole(r"(?=[0-9A-Fa-f]*[0-9])(?=[0-9A-Fa-f]*[A-Fa-f])[0-9A-Fa-f]{12,}")),
    ("a number", _whole(r"\d+(?:\.\d+)?")),
)


@dataclass(frozen=True)
class Difference:
    """Two texts that are the same up to a value of a `kind` at `start`: `ours` in one, `theirs` in the other.

    same_after: how many characters behind the value are the same again.
    """

    kind: str
    start: int
    ours: str
    theirs: str
    same_after: int


def first_difference(ours: str, theirs: str) -> Difference | None:
    """The whole value in which two texts first differ; None if one of them is the start of the other."""
    at = common_prefix(ours, theirs)
    if at == min(len(ours), len(theirs)):
        return None
    for kind, pattern in _KINDS:
        for match in pattern.finditer(ours, max(0, at - _WINDOW), at + _WINDOW):
            other = pattern.match(theirs, match.start())
            if match.start() <= at <= match.end() and other is not None and other.group() != match.group():
                return _difference(kind, ours, theirs, match.start(), match.end(), other.end())
    start, end, other_end = _word_start(ours, at), _word_end(ours, at), _word_end(theirs, at)
    if end == other_end == at:  # the same word, with another sign behind it
        end = other_end = at + 1
    return _difference("text", ours, theirs, start, end, other_end)


def common_prefix(one: str, other: str) -> int:
    """How many characters two texts have in common at their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _difference(kind: str, ours: str, theirs: str, start: int, end: int, other_end: int) -> Difference:
    same = common_prefix(ours[end:], theirs[other_end:])
    return Difference(kind, start, ours[start:end], theirs[start:other_end], same)


def _word_start(text: str, at: int) -> int:
    while at and text[at - 1].isalnum():
        at -= 1
    return at


def _word_end(text: str, at: int) -> int:
    while at < len(text) and text[at].isalnum():
        at += 1
    return at
