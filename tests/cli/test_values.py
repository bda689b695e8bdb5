"""Numbers on the command line."""

import argparse

import pytest

from vtk.cli.values import MAX_DIGITS, count


def test_a_number_that_fits_no_counter_is_told_in_words() -> None:
    assert count("9" * MAX_DIGITS) == 10**MAX_DIGITS - 1
    for digits in (MAX_DIGITS + 1, 5000):
        with pytest.raises(argparse.ArgumentTypeError, match=f"at most 18 digits, got {digits}"):
            count("9" * digits)
