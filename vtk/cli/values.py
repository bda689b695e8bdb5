"""Types of arguments: numbers with a range."""

from __future__ import annotations

import argparse
import math

MAX_DIGITS = 18  # what fits 64 bits, which is all that a size or a count here can be


def positive(text: str) -> int:
    """A whole number above 0."""
    value = count(text)
    if value < 1:
        raise argparse.ArgumentTypeError("expected a whole number above 0, got 0")
    return value


def count(text: str) -> int:
    """A whole number from 0."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, got '{text}'")
    if len(text) > MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"expected a whole number of at most {MAX_DIGITS} digits, got {len(text)}")
    return int(text)


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got '{text}'")
    return value


def seconds(text: str) -> float:
    """A time of 0 seconds or more."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, got '{text}'")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
