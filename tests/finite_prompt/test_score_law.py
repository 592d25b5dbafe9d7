"""The law of the score deviation: chi-square laws, determinants, moments, and the tail."""

import numpy as np
import pytest
from scipy import stats

from lib.finite_prompt.score_law import ScoreLaw, settled


@pytest.fixture
def matrices():
    """A positive definite M of coupling 1/4 in dimension 5, and three symmetric forms."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(5, 5))
    M = root @ root.T
    forms = [form + form.T for form in rng.normal(size=(3, 5, 5))]
    return M / (4 * np.linalg.eigvalsh(M)[-1]), forms


@pytest.mark.parametrize("dim", [1, 2, 5, 7, 64])
def test_isotropic_is_chi_square_to_the_last_digits_even_in_the_tail(dim):
    s = np.linspace(0.01, 25, 100)
    exact = stats.chi2(dim).logpdf(s**2 / 0.7) + np.log(2 * s / 0.7)
    np.testing.assert_allclose(np.log(ScoreLaw(0.7 * np.eye(dim)).density(s)), exact, atol=1e-11)


def average(law, g, forms, rtol=1e-10):
    return law.average(lambda s: g(s)[None, :, None], [forms], log_smallest=-30, largest_s=1e3, rtol=rtol)


@pytest.mark.parametrize("n_forms", [0, 1, 2, 3])
def test_exponential_moments_against_isserlis(matrices, n_forms):
    """E[e^{s^2} Q_1 .. Q_k] is a determinant times a Gaussian moment under the covariance (I - 2M)^{-1}."""
    M, forms = matrices
    C = np.linalg.inv(np.eye(5) - 2 * M)
    a, b, c = (C @ form for form in forms)
    tr = np.trace
    moments = [
        1,
        tr(a),
        tr(a) * tr(b) + 2 * tr(a @ b),
        tr(a) * tr(b) * tr(c)
        + 2 * (tr(a) * tr(b @ c) + tr(b) * tr(a @ c) + tr(c) * tr(a @ b))
        + 4 * (tr(a @ b @ c) + tr(a @ c @ b)),
    ]
    exact = moments[n_forms] * np.sqrt(np.linalg.det(C))
    found = average(ScoreLaw(M), lambda s: np.exp(s**2), tuple(forms[:n_forms]))
    assert found.value[0] == pytest.approx(exact, rel=1e-9)


def test_the_numerical_error_covers_the_error(matrices):
    M, _ = matrices
    exact = np.linalg.det(np.eye(5) - 2 * M) ** -0.5
    found = average(ScoreLaw(M), lambda s: np.exp(s**2), (), rtol=1e-3)
    assert abs(found.value[0] - exact) <= found.numerical_error[0] <= 1e-3 * exact


def test_singular_and_badly_conditioned_forms():
    for spectrum in ([1, 0, 0], [1, 1e-3, 1e-6], [1, 1 - 1e-9, 0.5]):
        M = np.diag(spectrum) / 5
        exact = np.linalg.det(np.eye(3) - 2 * M) ** -0.5
        assert average(ScoreLaw(M), lambda s: np.exp(s**2), ()).value[0] == pytest.approx(exact, rel=1e-9)


def test_tail_point_is_a_bound():
    law = ScoreLaw(np.diag([1.0, 0.5, 0.1]))
    s = np.linspace(law.tail_point(-20.0), 30, 4000)
    assert 0 < np.trapezoid(law.density(s), s) < np.exp(-20)


def test_a_zero_matrix_has_no_law():
    with pytest.raises(ValueError, match="not zero"):
        ScoreLaw(np.zeros((3, 3)))


def test_what_lies_beyond_the_table_is_in_the_numerical_error():
    """The mass of a law that is cut off at s = 40, among quiet and among very loud scores: s / sqrt(coupling) ~ chi."""
    for coupling in (30.0, 100.0, 400.0):
        law = ScoreLaw(coupling * np.eye(3))
        found = law.average(lambda s: np.ones((1, len(s), 1)), [()], log_smallest=-5, largest_s=40.0)
        missing = stats.chi2(3).sf(40.0**2 / coupling)
        assert abs(1 - found.value[0]) == pytest.approx(missing, rel=1e-6, abs=1e-10)
        assert missing <= found.numerical_error[0] <= 4 * missing + 1e-9
    loud = ScoreLaw(2000 * np.eye(3)).average(lambda s: np.ones((1, len(s), 1)), [()], log_smallest=-5, largest_s=40.0)
    assert loud.numerical_error[0] == np.inf  # the table ends before the tail begins


def test_a_quadrature_is_refined_until_it_settles():
    """Rules with the error 1 / n^2: the first whose change is a quarter of what is asked for, with that change."""
    asked = []

    def rule(n):
        asked.append(n)
        return np.array([1 + n**-2.0]), np.array([1e-5])

    found = settled(rule, (1, 2, 4, 8, 16, 32), rtol=0.2)
    assert asked == [1, 2, 4, 8]
    assert found.value[0] == 1 + 1 / 64
    assert found.numerical_error[0] == pytest.approx(1 / 16 - 1 / 64 + 1e-5, rel=1e-12)
    assert settled(rule, (1, 2), rtol=1e-9).numerical_error[0] > 0.7  # and it says where it did not
