"""Verdicts: every way an interval can lie to a band, controls, curves, and the displays."""

import math

import numpy as np
import pytest

from lib.notebook.claims import Claim, Claims, verdict_of
from lib.prompts.estimate import Estimate

BAND = (0.9, 1.1)


def claim(**changes) -> Claim:
    fields = dict(id="a", statement="S < T", source="Prop. 1", status="exact here", prediction=1.0, band=BAND)
    return Claim(**(fields | {"control": "a wrong constant"} | changes))


def judged(measured, control, **changes) -> Claim:
    made = claim(**changes)
    made.judge(measured, control)
    return made


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.95, 1.05, "PASS"),
        (0.9, 1.1, "PASS"),
        (1.2, 1.3, "FAIL"),
        (0.5, 0.8, "FAIL"),
        (0.85, 1.0, "INCONCLUSIVE"),
        (0.5, 2.0, "INCONCLUSIVE"),  # it contains the prediction, and is no pass
        (math.nan, 1.0, "INCONCLUSIVE"),
        (1.0, math.inf, "INCONCLUSIVE"),
    ],
)
def test_interval_against_band(low, high, verdict):
    assert verdict_of(Estimate(1.0, low, high), BAND) == verdict


def test_a_control_that_does_not_fail_voids_a_pass():
    good, wrong = Estimate(1, 0.95, 1.05), Estimate(2, 1.9, 2.1)
    assert judged(good, wrong).verdict == "PASS"
    assert judged(good, good).verdict == "INCONCLUSIVE"
    assert judged(good, Estimate(1.2, 1.0, 1.4)).verdict == "INCONCLUSIVE"
    assert judged(wrong, good).verdict == "FAIL"


def test_an_exact_estimate_is_widened_by_its_numerical_error():
    assert Estimate.exact(2.0) == (2.0, 2.0 - 2e-15, 2.0 + 2e-15)
    assert Estimate.exact(2.0, 0.1) == (2.0, 1.9, 2.1)
    assert verdict_of(Estimate.exact(math.nan), BAND) == "INCONCLUSIVE"


def test_the_worst_of_a_set_stands_for_it():
    assert Estimate.worst([1.0, 1.05, 0.8, 1.1]).value == 0.8
    assert Estimate.worst([0.1, -0.3], target=0).value == -0.3
    assert verdict_of(Estimate.worst([1.0, math.nan]), BAND) == "INCONCLUSIVE"


def test_a_curve_passes_as_a_whole_and_fails_by_any_point():
    inside = Estimate.curve([1.0, 1.0, 1.0], [0.95, 0.92, 0.99], [1.05, 1.08, 1.01], BAND)
    assert (inside.low, inside.high) == (0.92, 1.08)
    assert verdict_of(inside, BAND) == "PASS"
    touching = Estimate.curve([1.0, 1.08], [0.95, 1.02], [1.05, 1.14], BAND)
    assert verdict_of(touching, BAND) == "INCONCLUSIVE"
    one_out = Estimate.curve([1.0, 1.3], [0.95, 1.2], [1.05, 1.4], BAND)
    assert one_out == (1.3, 1.2, 1.4)
    assert verdict_of(one_out, BAND) == "FAIL"


def test_of_nothing_nothing_is_known():
    for estimate in (Estimate.worst([]), Estimate.curve([], [], [], band=(0, 1))):
        assert verdict_of(estimate, (0, 1)) == "INCONCLUSIVE"


def test_students_interval_of_a_mean():
    estimate = Estimate.of_mean([1.0, 2.0, 3.0])
    assert estimate.value == 2
    assert estimate.high - estimate.value == pytest.approx(4.302653 / np.sqrt(3), rel=1e-6)


def test_students_interval_covers_as_often_as_it_says():
    """400 seeded trials: 95 % coverage lies within [0.91, 0.98] but for a false alarm of about one in a thousand."""
    rng = np.random.default_rng(5)
    estimates = [Estimate.of_mean(rng.normal(size=5)) for _ in range(400)]
    assert 0.91 < np.mean([e.low < 0 < e.high for e in estimates]) < 0.985


def test_the_tolerance_of_a_metric():
    by_interval = judged(Estimate(1, 0.9, 1.1), Estimate(2, 2, 2)).metric()
    assert (by_interval.value, by_interval.tolerance) == (1.0, pytest.approx(0.1))
    assert judged(Estimate(1, 1, 1), Estimate(2, 2, 2), tolerance=1e-12).metric().tolerance == 1e-12


def test_displays_say_it_all_and_escape_what_they_show():
    declared = Claims(a=claim())
    assert "S &lt; T" in declared._repr_html_() and "a wrong constant" in declared._repr_html_()
    passed = judged(Estimate(1, 0.95, 1.05), Estimate(2, 1.9, 2.1))
    assert 'id="claim-a"' in passed._repr_html_() and "PASS" in passed._repr_html_()
    assert "fails, as it must" in repr(passed)
    assert "PASS" in Claims(a=passed)._repr_html_()
    assert "does not fail" in repr(judged(Estimate(1, 1, 1), Estimate(1, 1, 1)))


def test_an_unknown_claim_is_named_with_the_known_ones():
    with pytest.raises(KeyError, match="no claim 'b'; declared are a"):
        Claims(a=claim())["b"]
