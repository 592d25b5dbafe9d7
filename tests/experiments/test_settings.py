"""What several notebooks share: measures that agree in two moments, heads of a given score deviation."""

import numpy as np
import pytest

from lib.experiments.settings import generic_head, regression, setting_name, unit_measures
from lib.finite_prompt import score_deviation
from lib.tokens.covariances import covariance_matrix


def test_the_measures_share_mean_and_covariance_and_nothing_else():
    measures, a = unit_measures(3), np.array([1.5, 0.5, -1.0])
    for measure in measures.values():
        np.testing.assert_allclose(measure.mean, 0, atol=1e-15)
        np.testing.assert_allclose(measure.covariance, np.eye(3), atol=1e-12)
    limits = {name: measure.tilted_mean(a) for name, measure in measures.items()}
    np.testing.assert_allclose(limits.pop("Gaussian"), a)
    assert all(np.linalg.norm(limit - a) > 0.05 for limit in limits.values())


@pytest.mark.parametrize("covariance", ["isotropic", "toeplitz(0.9)", "rank(3)"])
def test_a_head_has_the_score_deviation_asked_for_and_depends_on_the_seed_alone(covariance):
    gamma = covariance_matrix(covariance, 5)
    query, U, V = generic_head(5, gamma, 1.3, seed=7)
    assert score_deviation(gamma, query, U) == pytest.approx(1.3)
    again, other = generic_head(5, gamma, 1.3, seed=7), generic_head(5, gamma, 1.3, seed=8)
    np.testing.assert_array_equal(again[2], V)
    assert not np.allclose(other[2], V)


def test_names_and_tasks():
    assert setting_name("rank(3)", 5) == "rank(3), d = 5"
    task = regression("condition(10)", 4, 0.3)
    assert np.linalg.cond(task.covariance) == pytest.approx(10)
    assert (task.noise_std, task.task_variance) == (0.3, 1.0)
