"""Verdicts: every way an interval can lie to a band, controls, curves, and the displays."""

import math

import numpy as np
import pytest

from lib.notebook.claims import Claim, Claims, errors_caught, verdict_of
from lib.notebook.comparison import Comparison
from lib.prompts.curve import Curve
from lib.prompts.estimate import Estimate, Intervals

BAND = (0.9, 1.1)


def claim(**changes) -> Claim:
    fields = dict(id="a", statement="S < T", source="Prop. 1", status="exact here", prediction=1.0, band=BAND)
    return Claim(**(fields | {"control": "a wrong constant"} | changes))


def judged(measured, control, near=None, **changes) -> Claim:
    made = claim(**changes)
    made.judge(Comparison(measured=measured, control=control, near_miss=near))
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
    assert verdict_of(Estimate((low + high) / 2 if low < high < math.inf else 1.0, low, high), BAND) == verdict


def test_a_control_that_does_not_fail_voids_a_pass():
    good, wrong = Estimate(1, 0.95, 1.05), Estimate(2, 1.9, 2.1)
    assert judged(good, wrong).verdict == "PASS"
    assert judged(good, good).verdict == "INCONCLUSIVE"
    assert judged(good, Estimate(1.2, 1.0, 1.4)).verdict == "INCONCLUSIVE"
    assert judged(wrong, good).verdict == "FAIL"


def test_an_exact_estimate_is_widened_by_its_numerical_error():
    assert tuple(Estimate.exact(2.0)) == (2.0, 2.0 - 2e-15, 2.0 + 2e-15)
    assert tuple(Estimate.exact(2.0, 0.1)) == (2.0, 1.9, 2.1)
    assert verdict_of(Estimate.exact(math.nan), BAND) == "INCONCLUSIVE"


def test_an_interval_that_misses_its_own_number_shows_nothing():
    assert verdict_of(Estimate(1.05, 0.95, 1.02), BAND) == "INCONCLUSIVE"
    assert verdict_of(Estimate(1.0, 0.95, math.inf), (0.9, math.inf)) == "INCONCLUSIVE"
    assert verdict_of(Estimate(1.0, 1.5, 1.6), BAND) == "INCONCLUSIVE"


def test_a_near_miss_that_passes_voids_a_pass_and_one_that_is_undecided_does_not():
    good, wrong, near = Estimate(1, 0.95, 1.05), Estimate(2, 1.9, 2.1), Estimate(1.1, 1.05, 1.15)
    assert judged(good, wrong, near, near_miss="by a tenth").verdict == "PASS"
    assert judged(good, wrong, good, near_miss="by a tenth").verdict == "INCONCLUSIVE"
    assert judged(good, wrong, good, near_miss="by a tenth").near_verdict == "PASS"
    assert judged(wrong, wrong, good, near_miss="by a tenth").verdict == "FAIL"


def test_a_near_miss_is_both_named_and_measured():
    good, wrong = Estimate(1, 0.95, 1.05), Estimate(2, 1.9, 2.1)
    with pytest.raises(ValueError, match="a near miss must be both"):
        judged(good, wrong, near_miss="by a tenth", **{"id": "b"})
    with pytest.raises(ValueError, match="a near miss must be both"):
        claim().judge(Comparison(measured=good, control=wrong, near_miss=good))


def test_the_errors_that_would_have_been_caught():
    """At the error itself the verdict is no FAIL, a thousandth beyond it is, and in both directions."""
    rng = np.random.default_rng(0)
    curve = Curve.from_samples([rng.exponential(size=2000) for _ in range(4)], rng)
    for measured in (Estimate(1.02, 1.0, 1.04), Intervals.exact([0.97, 1.05]), curve):
        for error in errors_caught(measured, BAND, prediction=1.0):
            for beyond, told in ((0.999, False), (1.001, True)):
                held = measured.intervals()
                factor = 1 + beyond * error
                scaled = Intervals(held.values * factor, held.low * factor, held.high * factor)
                assert (verdict_of(scaled.estimate(BAND), BAND) == "FAIL") == told
    assert errors_caught(Estimate(0.01, 0.0, 0.02), (-0.03, 0.03), 0.0) == pytest.approx((-0.05, 0.03))
    assert errors_caught(Estimate(0.01, 0.01, 0.01), (0, 0.03), 0.0) == pytest.approx((-math.inf, 0.02))
    assert errors_caught(Estimate(0.5, 0.4, 0.6), (0, 1), 1.0) == pytest.approx((-math.inf, 1.5))
    assert errors_caught(Estimate.unknown(), BAND, 1.0) == (-math.inf, math.inf)


def test_the_worst_of_a_set_stands_for_it():
    found = Intervals.exact([1.0, 1.05, 0.85, 1.1]).estimate(BAND)
    assert (found.value, found.cases, found.worst) == (0.85, 4, True)
    assert Intervals.exact([0.1, -0.3]).estimate((-0.4, 0.4)).value == -0.3
    assert Intervals.exact([0.0, 0.3]).estimate((0, 1)).value == 0.3, "an error of 0 is not about to leave a band"
    assert verdict_of(Intervals.exact([1.0, math.nan]).estimate(BAND), BAND) == "INCONCLUSIVE"


def test_a_curve_passes_as_a_whole_and_fails_by_any_point():
    def of(*arrays):
        return Intervals(*map(np.array, arrays)).estimate(BAND)

    inside = of([1.0, 1.0, 1.0], [0.95, 0.92, 0.99], [1.05, 1.08, 1.01])
    assert (inside.low, inside.high) == (0.92, 1.08)
    assert verdict_of(inside, BAND) == "PASS"
    assert verdict_of(of([1.0, 1.08], [0.95, 1.02], [1.05, 1.14]), BAND) == "INCONCLUSIVE"
    one_out = of([1.0, 1.3], [0.95, 1.2], [1.05, 1.4])
    assert tuple(one_out) == (1.3, 1.2, 1.4)
    assert verdict_of(one_out, BAND) == "FAIL"


def test_of_nothing_nothing_is_known():
    found = Intervals.exact([]).estimate((0, 1))
    assert (found.cases, verdict_of(found, (0, 1))) == (0, "INCONCLUSIVE")
    assert verdict_of(Estimate(0.5, 0.4, 0.6, cases=0), (0, 1)) == "INCONCLUSIVE"


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
    assert "with an error of -14 % or +16 %" in repr(passed) and "difference" not in repr(passed)
    off = judged(Intervals.exact([1.02, 1.03]), Estimate(2, 1.9, 2.1))
    assert "1.03 (worst of 2), hull of the intervals" in repr(off) and "excludes the prediction" in repr(off)
    near = judged(Estimate(1, 1, 1), Estimate(2, 2, 2), Estimate(1, 1, 1), near_miss="L - 1")
    assert "L - 1" in repr(near) and "passes: nothing is shown" in repr(near)
    chosen = claim(chosen_on="seeds 100 to 104", prediction=0.9)
    assert "threshold: 0.9, accepted [0.9, 1.1], chosen on seeds 100 to 104" in repr(chosen)


def test_an_unknown_claim_is_named_with_the_known_ones():
    with pytest.raises(KeyError, match="no claim 'b'; declared are a"):
        Claims(a=claim())["b"]


def test_a_claim_made_for_other_parameters_is_not_applicable_whatever_was_measured():
    for holds, verdict in ((True, "PASS"), (False, "NOT APPLICABLE")):
        claim = Claim("a", "A.", "Lemma 1", "exact here", 1.0, BAND, "wrong", only_if=("long prompts", holds))
        claim.judge(Comparison(measured=Estimate(1.0, 0.99, 1.01), control=Estimate(2.0, 1.9, 2.1)))
        assert claim.verdict == verdict
        assert "long prompts" in claim._repr_html_() and claim.record().only_if == "long prompts"
    assert claim.why == "made only for long prompts"


def test_a_claim_says_why_it_is_undecided():
    wide, wrong = Estimate(1.0, 0.5, 1.5), Estimate(2.0, 1.9, 2.1)
    alone = Estimate(1.0, math.nan, math.nan, cases=1)
    for measured, control, why in (
        (wide, wrong, ""),  # as interval and band show
        (alone, wrong, "no interval: 1 sample"),
        (Estimate.unknown(), wrong, "nothing was measured"),
        (Estimate(1.0, 0.99, 1.01, cases=0), wrong, "nothing was measured"),
        (Estimate(1.0, 0.99, 1.01), wide, "its control does not fail"),
    ):
        claim = Claim("a", "A.", "Lemma 1", "exact here", 1.0, BAND, "wrong")
        claim.judge(Comparison(measured=measured, control=control))
        assert (claim.verdict, claim.why) == ("INCONCLUSIVE", why)
