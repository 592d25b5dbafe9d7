"""Measured curves: coverage of their simultaneous bands, pooling, slopes, and what is left without points."""

import numpy as np
import pytest

from lib.prompts.curve import Curve, average, join


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


def test_points_and_ratios_act_on_the_resamples_too():
    samples = [x * np.array([0.9, 1.0, 1.3]) for x in (8.0, 4.0, 2.0)]
    curve, twin = (Curve.from_samples(samples, np.random.default_rng(0)) for _ in range(2))
    other = Curve.from_samples(samples, np.random.default_rng(1))
    np.testing.assert_array_equal((curve / twin).resampled, 1.0)  # what the same draws share cancels
    assert np.ptp((curve / other).resampled) > 0.1  # the control: other draws do not cancel
    for chosen in (slice(1, None), np.array([False, True, True])):
        np.testing.assert_array_equal(curve.at(chosen).mean, curve.mean[1:])
        np.testing.assert_array_equal(curve.at(chosen).resampled, curve.resampled[:, 1:])


def test_a_curve_is_judged_by_its_band():
    steady = Curve(np.ones(3), np.ones((50, 3)) + 0.01 * np.random.default_rng(0).normal(size=(50, 3)))
    assert 0.9 < steady.estimate((0.9, 1.1)).low < steady.estimate((0.9, 1.1)).high < 1.1
    assert steady.shifted(1).estimate((0.9, 1.1)).low > 1.1


def test_without_points_nothing_is_known():
    empty = Curve(np.empty(0), np.empty((100, 0)))
    for estimate in (empty.pooled(), empty.estimate((0.9, 1.1)), join([empty, empty]).estimate((0.9, 1.1))):
        assert np.isnan(tuple(estimate)).all()
    one = Curve(np.ones(3), np.ones((100, 3))).slope([10, 100, 1000], window=(50, 500))
    assert np.isnan(tuple(one.estimate((-0.1, 0.1)))).all()
