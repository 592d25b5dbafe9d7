"""Numbers and intervals as people read them, written alike everywhere."""

import math

import pytest

from lib.notebook.numbers import interval, number


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (0.123456789, "0.12346"), (1e-12, "1e-12"), (None, "–"), (math.nan, "nan")]
)
def test_five_digits_or_a_dash(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((0.85, 1.15), "[0.85, 1.15]"),
        ((0.99123, 0.99129), "[0.99123, 0.99129]"),
        ((1.0, 1.0 + 1e-12), "[1, 1]"),
        ((2.0, 2.0), "[2, 2]"),
        ((None, 1.0), "[–, 1]"),
        ((0.5, math.inf), "[0.5, inf]"),
        ((-1e-9, 1e-9), "[-1e-09, 1e-09]"),
        ((0.0, 0.0), "[0, 0]"),
    ],
)
def test_an_interval_shows_the_digits_that_tell_its_ends_apart(ends, text):
    assert interval(*ends) == text


def test_ends_that_differ_never_read_the_same():
    for gap in (10.0**-k for k in range(1, 9)):
        low, high = interval(1.0, 1.0 + gap).strip("[]").split(", ")
        assert low != high
