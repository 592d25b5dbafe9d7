"""Softmax functionals: reference values, closed forms, direct quadrature, Monte Carlo, and bad input."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.finite_prompt.weight_moments import H2_MINUS_1, ONE, H, expected_products, softmax_functionals

# (s, L, y, v), computed once by an independent program to about 1e-11.
REFERENCE = [
    (0.1, 2, 0.5024753478486533, 0.5074269295345872),
    (0.1, 1e12, 1.0100501670842293e-12, 1.0201506687550712e-12),
    (0.5, 100, 0.012783900432642825, 0.015913133778186882),
    (1.0, 10, 0.19468739369466304, 0.29737335500599543),
    (1.0, 1e8, 2.7182816212374334e-08, 5.436562480686671e-08),
    (2.0, 1000, 0.029034300559853333, 0.07927651175200287),
    (3.0, 1e5, 0.01579958808285509, 0.056898405955998384),
    (5.0, 2, 0.8906413097004272, 20.52553156648686),
    (5.0, 1e12, 0.0013324999376798149, 0.009620120397432649),
]
ALL_MOMENTS = [
    [(2, ONE)],
    [(1, H), (1, H)],
    [(2, ONE), (2, ONE)],
    [(3, ONE)],
    [(1, H2_MINUS_1), (1, H2_MINUS_1)],
    [(1, H2_MINUS_1), (1, H), (1, H)],
    [(1, H)] * 4,
    [(1, H2_MINUS_1), (2, ONE)],
    [(1, H), (1, H), (2, ONE)],
    [(1, H), (2, H)],
    [(2, (0.0, 0.0, 1.0))],
]


@pytest.mark.parametrize(("s", "length", "y", "v"), REFERENCE)
def test_reference_values(s, length, y, v):
    functionals = softmax_functionals(s, length)
    assert functionals.inverse_participation == pytest.approx(y, rel=1e-11)
    assert functionals.squared_error == pytest.approx(v, rel=1e-11)


def test_equal_weights_and_one_token_are_exact():
    s, length = np.array([0, 1e-6, 0.3, 2, 8, 40.0]), np.array([1, 2, 10, 1e15, 1e40])
    no_scores, one_token = softmax_functionals(0.0, length), softmax_functionals(s, 1)
    assert np.array_equal(no_scores.inverse_participation, 1 / length)
    assert np.array_equal(no_scores.squared_error, 1 / length)
    assert np.array_equal(one_token.inverse_participation, np.ones(6))
    assert np.array_equal(one_token.squared_error, 1 + s**2)


@pytest.mark.parametrize("factors", ALL_MOMENTS)
def test_the_integrals_meet_the_closed_form_at_one_token(factors):
    """At L = 1 the moment is E prod f_k(g), here by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    for s in (0.05, 0.8, 3.0):
        product = np.prod([np.polynomial.polynomial.polyval(nodes - s, f) for _, f in factors], axis=0)
        scale = weights @ np.abs(product) / weights.sum()
        found = expected_products(s, 1, [factors])[0]
        assert abs(found - weights @ product / weights.sum()) < 1e-11 * scale


@pytest.mark.parametrize("factors", ALL_MOMENTS)
@pytest.mark.parametrize("s", [0.1, 1.1, 3.0])
def test_two_tokens_against_two_dimensional_quadrature(factors, s):
    g = np.arange(-9.5, 9.5 + 2 * s, 0.02 if s > 2 else 0.05)
    first, second = g[:, None], g[None, :]
    p = 1 / (1 + np.exp(s * (second - first)))
    sums = [
        p**n * np.polynomial.polynomial.polyval(first - s, f)
        + (1 - p) ** n * np.polynomial.polynomial.polyval(second - s, f)
        for n, f in factors
    ]
    density = np.exp(-(first**2 + second**2) / 2) * (g[1] - g[0]) ** 2 / (2 * np.pi)
    expected, scale = (density * np.prod(sums, axis=0)).sum(), (density * np.abs(np.prod(sums, axis=0))).sum()
    assert abs(expected_products(s, 2, [factors])[0] - expected) < 1e-10 * scale


def test_a_finer_grid_changes_nothing(monkeypatch):
    s = np.array([0.001, 0.02, 0.3, 0.6, 0.65, 1, 3, 8, 20, 40])[:, None]
    length = np.array([1, 3, 100, 1e8, 1e15, 1e22, 1e40])
    coarse = expected_products(s, length, ALL_MOMENTS[:2])
    monkeypatch.setattr("lib.finite_prompt.weight_moments.TAU_STEP", 0.09)
    monkeypatch.setattr("lib.finite_prompt.weight_moments.G_STEP", 0.21)
    error = np.abs(coarse / expected_products(s, length, ALL_MOMENTS[:2]) - 1)
    assert error[:, s[:, 0] <= 8, :5].max() < 1e-11
    assert error.max() < 1e-9


def test_an_even_coarser_grid_does():
    """The control of the test above: its check can fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lib.finite_prompt.weight_moments.TAU_STEP", 1.5)
        rough = softmax_functionals(1.0, 100).inverse_participation
    assert abs(rough / softmax_functionals(1.0, 100).inverse_participation - 1) > 1e-9


def test_against_sampled_weights():
    rng, s, length = np.random.default_rng(7), 1.4, 23
    g = rng.standard_normal((100_000, length))
    p = np.exp(s * g)
    p /= p.sum(1, keepdims=True)
    h = g - s
    for factors, exact in zip(ALL_MOMENTS, expected_products(s, length, ALL_MOMENTS), strict=True):
        sums = [(p**n * np.polynomial.polynomial.polyval(h, f)).sum(1) for n, f in factors]
        assert_mean(np.prod(sums, axis=0), exact)


def test_mean_of_the_scores_is_shrunk_by_the_inverse_participation():
    """E ghat = s (1 - eta), Gaussian integration by parts: the first moment from the integrals meets the second one."""
    s, length = np.array([0.1, 1, 4])[:, None], np.array([1, 5, 1e4])
    shift, eta = expected_products(s, length, [[(1, H)], [(2, ONE)]])
    np.testing.assert_allclose(shift, -s * eta, rtol=1e-9)


def test_between_uniform_and_frozen():
    s, length = np.linspace(0, 8, 9)[:, None], np.array([2, 30, 1e6])
    eta = softmax_functionals(s, length).inverse_participation
    assert np.all(np.diff(eta, axis=0) > 0)
    assert np.all(np.diff(eta, axis=1) < 0)
    assert np.all(eta >= (1 - 1e-14) / length)


def test_large_length_constants():
    s = np.array([0.05, 0.5, 1, 2])
    f = softmax_functionals(s, 1e15)
    np.testing.assert_allclose(1e15 * f.inverse_participation, np.exp(s**2), rtol=1e-8)
    np.testing.assert_allclose(1e15 * f.squared_error, (1 + s**2) * np.exp(s**2), rtol=1e-8)


def test_shapes_broadcast():
    f = softmax_functionals(np.ones((4, 1)), [1, 10, 100])
    assert f.inverse_participation.shape == f.squared_error.shape == (4, 3)
    assert softmax_functionals(1.0, 10).inverse_participation.shape == ()


@pytest.mark.parametrize(
    ("s", "length", "message"),
    [
        (-1, 10, "s must be between 0 and 40, received -1"),
        (np.nan, 10, "s must be between 0 and 40, received nan"),
        (1, 0, "prompt length must be between 1 and 1e40, received 0"),
        (1, 2.5, "prompt length must be whole, received 2.5"),
        (1, np.inf, "prompt length must be between 1 and 1e40, received inf"),
    ],
)
def test_bad_input(s, length, message):
    with pytest.raises(ValueError, match=message):
        softmax_functionals(s, length)
