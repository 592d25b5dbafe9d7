"""Errors from prompts and their intervals: against the exact curves, with coverage, and for other measures."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.finite_prompt import output_error, score_gradient_error, value_gradient_error
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve, average, join
from lib.prompts.errors import prompt_errors
from lib.tokens.families import Gaussian, Rademacher

D = 5


def head(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=D), 0.3 * rng.normal(size=(D, D)), rng.normal(size=(3, D))


@pytest.mark.parametrize("length", [1, 7, 60])
def test_prompt_errors_have_the_exact_means(length):
    query, U, V = head()
    gamma = np.diag([1.0, 0.5, 2.0, 0.0, 1.0])
    errors = prompt_errors(Gaussian(np.ones(D), gamma), query, U, V, length, 20_000, np.random.default_rng(1))
    assert_mean(errors[:, 0], output_error(gamma, query, U, V, length))
    assert_mean(errors[:, 1], value_gradient_error(gamma, query, U, length))
    assert_mean(errors[:, 2], score_gradient_error(gamma, query, U, V, length))


def test_blocks_do_not_matter_to_the_law(monkeypatch):
    """With blocks of 64 numbers prompts are read in many pieces: the same mean, one piece after another."""
    query, U, V = head()
    monkeypatch.setattr("lib.prompts.errors.CACHE", 64)
    errors = prompt_errors(Gaussian(np.zeros(D), np.eye(D)), query, U, V, 50, 2000, np.random.default_rng(2))
    assert_mean(errors[:, 0], output_error(np.eye(D), query, U, V, 50))


def test_one_query_for_each_prompt():
    _, U, V = head()
    queries = np.random.default_rng(3).normal(size=(8_000, D))
    errors = prompt_errors(Gaussian(np.zeros(D), np.eye(D)), queries, U, V, 20, len(queries), np.random.default_rng(4))
    assert_mean(errors[:, 0] - output_error(np.eye(D), queries, U, V, 20), 0.0)


def test_other_tokens_have_another_error():
    query, U, V = head()
    errors = prompt_errors(Rademacher(D), query, 3 * U, V, 50, 20_000, np.random.default_rng(5))
    with pytest.raises(AssertionError):
        assert_mean(errors[:, 0], output_error(np.eye(D), query, 3 * U, V, 50))


def test_budget():
    assert affordable_prompts(1000, 5, 10**6, most=10**6) == 200
    assert affordable_prompts(1000, 5, 10**6, most=50) == 50
    assert affordable_prompts(10**6, 5, 10**6, most=50) == 24


def exponential_curve(seed, n=(40, 300, 1000)):
    rng = np.random.default_rng(seed)
    return Curve.from_samples([rng.exponential(size=k) for k in n], rng, n_resamples=400)


def test_the_simultaneous_band_covers_the_whole_curve():
    """150 seeded curves of three exponential means: nominal 95 %, at least 86 % allowing for skewness and chance."""
    curves = [exponential_curve(seed) for seed in range(150)]
    bands = [curve.simultaneous() for curve in curves]
    covered = np.mean([np.all(low < 1) and np.all(high > 1) for low, high in bands])
    assert 0.86 < covered <= 1
    halved = [np.sqrt(np.array(band) * curve.mean) for band, curve in zip(bands, curves, strict=True)]
    narrow = np.mean([np.all(low < 1) and np.all(high > 1) for low, high in halved])
    assert narrow < 0.7  # the control: a band of half the width covers less


def test_pooling_and_slopes():
    samples = [x * np.array([0.9, 1.0, 1.1]) for x in (8.0, 4.0, 2.0, 1.0)]
    curve = Curve.from_samples(samples, np.random.default_rng(0))
    lengths = [10, 20, 40, 80]
    assert curve.pooled().value == pytest.approx(3.75)
    assert curve.slope(lengths, (10, 80)).mean[0] == pytest.approx(-1)
    assert (curve / np.array([8.0, 4, 2, 1])).slope(lengths, (10, 80)).mean[0] == pytest.approx(0, abs=1e-12)
    assert curve.slope(lengths, (10, 20)).shifted(1.0).mean[0] == pytest.approx(0, abs=1e-12)
    assert join([curve, curve]).mean.shape == (8,)
    np.testing.assert_allclose(average([curve, curve.shifted(2)]).mean, curve.mean + 1)


def test_a_curve_is_judged_by_its_band():
    steady = Curve(np.ones(3), np.ones((50, 3)) + 0.01 * np.random.default_rng(0).normal(size=(50, 3)))
    assert 0.9 < steady.estimate((0.9, 1.1)).low < steady.estimate((0.9, 1.1)).high < 1.1
    assert steady.shifted(1).estimate((0.9, 1.1)).low > 1.1


def test_without_points_nothing_is_known():
    empty = Curve(np.empty(0), np.empty((100, 0)))
    for estimate in (empty.pooled(), empty.estimate((0.9, 1.1)), join([empty, empty]).estimate((0.9, 1.1))):
        assert np.isnan(estimate).all()
    one = Curve(np.ones(3), np.ones((100, 3))).slope([10, 100, 1000], window=(50, 500))
    assert np.isnan(one.estimate((-0.1, 0.1))).all()
