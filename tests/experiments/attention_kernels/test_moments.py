import numpy as np
import pytest

from lib.experiments.attention_kernels import moments
from lib.kernels.exact_errors import moment_error

SMALL = {"number_budget": 1_000_000, "coordinates": 20_000, "seed": 0}


def test_measured_distances_lie_on_the_exact_ones():
    settings, deviations, lengths = [("isotropic", 4), ("rank(2)", 3)], [0.5, 1.2], [16, 64]
    found = moments.distances(settings=settings, deviations=deviations, lengths=lengths, **SMALL)
    assert list(found.parts) == list(moments.DISTANCES)
    for distance in moments.DISTANCES:
        assert 0.93 < found[distance].pooled().measured.value < 1.07
        assert len(found[distance].measured.mean) == len(deviations) * len(lengths)
    assert found["moment to softmax"].pooled().control.value < 0.5
    assert found["moment to limit"].pooled().control.value < 0.95
    assert len(found.table) == 2 * 3 * len(deviations) * len(lengths)
    assert set(found.table["distance"]) == set(moments.DISTANCES)


def test_a_single_token_is_refused():
    with pytest.raises(ValueError, match="prompt lengths must be 2 or more"):
        moments.distances(settings=[("isotropic", 4)], deviations=[0.5], lengths=[1, 4], **SMALL)


def test_closer_on_long_prompts_only():
    grid = {"deviations": [0.1, 1.0, 3.0, 6.0], "dims": [1, 8, 4096]}
    assert (moments.closer_to_limit(multiples=[6, 60, 6e6], **grid).table["gain"] > 0).all()
    assert moments.closer_to_limit(multiples=[0.5], **grid).table["gain"].min() < -0.2


def test_weak_scores_are_equal_at_six_tokens():
    found = moments.equal_errors(s=0.1, dims=[1, 8])
    assert found.table["limit"].to_numpy() == pytest.approx(6, abs=1e-3)
    assert (found.table["equal at s"] > found.table["equal at s/2"]).all()
    assert found.control.values.min() > 5
    assert found.near_miss.values.max() < 0.9
    with pytest.raises(ValueError, match="not equal at any length"):
        moments.equal_at(4096, 8.0)


@pytest.mark.parametrize("length", [3, 6, 40])
def test_weak_scores_differ_by_the_fourth_power(length):
    s, dim = 0.02, 10**8  # all is across the scores
    predicted = s**4 * (length - 1) * (length - 6) / (2 * length**3)
    assert moments.errors_gap(dim, s, np.array([length]))[0] / dim == pytest.approx(predicted, abs=2e-3 * s**4)


def test_formulas_that_are_nearly_exact_become_exact_on_long_prompts():
    head = np.diag([2.0, 1.0]), np.array([0.3, 0.5]), np.eye(2), np.eye(2)
    ratio = moments.nearly_exact(*head, [4, 1e7]) / moments.exact_distances(*head, [4, 1e7])
    assert ratio[:, 1] == pytest.approx(1, abs=1e-4)
    assert (abs(ratio[:, 0] - 1) > 0.05).all()


def test_two_dimensions_stand_for_all():
    direct = moment_error(np.eye(7), np.array([0.8, *np.zeros(6)]), np.eye(7), np.eye(7), [3, 50])
    assert moment_error(*moments.isotropic(7, 0.8), [3, 50]) == pytest.approx(direct, rel=1e-12)
