"""Numbers with intervals: means of losses, relative estimates, and what is unknown."""

import math

import numpy as np
import pytest

from lib.prompts.estimate import Estimate


def test_losses_have_a_normal_interval():
    found = Estimate.of_losses([1.0, 2.0, 3.0, 6.0])
    assert found.value == 3
    assert found.half_width == pytest.approx(1.96 * np.std([1, 2, 3, 6], ddof=1) / 2)
    with pytest.raises(ValueError, match="at least 2 prompts, received 1"):
        Estimate.of_losses([1.0])


def test_the_interval_of_losses_covers_as_often_as_it_says():
    """400 seeded trials of exponential losses; a false alarm of about one in a thousand."""
    rng = np.random.default_rng(3)
    found = [Estimate.of_losses(rng.exponential(size=400)) for _ in range(400)]
    assert 0.91 < np.mean([x.low < 1 < x.high for x in found]) < 0.985


def test_relative_to_a_number_all_three_are_divided():
    assert tuple(Estimate(2.0, 1.0, 4.0).over(2.0)) == (1.0, 0.5, 2.0)


def test_the_unknown_has_no_number_and_is_judged_as_itself():
    assert all(math.isnan(x) for x in Estimate.unknown())
    assert tuple(Estimate(1, 0.9, 1.1).estimate((0, 1))) == (1, 0.9, 1.1)
