"""In-context regression: exact risks and gradients against prompts, closed forms, symmetries and limits."""

import numpy as np
import pytest
from scipy.stats import chi, ortho_group
from statistics_checks import assert_mean

from lib.finite_prompt.weight_moments import softmax_functionals
from lib.kernels import MomentAttention
from lib.regression.hessian import infinite_hessian, stable_step
from lib.regression.predictors import linear_head, softmax_head
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian, Rademacher

# The risk by radial quadrature in s, computed independently of this code to 1e-12: d, omega, b, L, noise variance.
ISOTROPIC = [
    (5, 0.4, 2.0, 400, 0.1, 0.18126199296599033),
    (5, 0.4, 2.0, 20, 0.1, 1.2901669357125096),
    (1, 1.0, 1.0, 100, 0.0, 0.032409006653910555),
    (4, 0.6, 1.6, 1000, 0.25, 0.05002631511040088),
]


def general(d, seed=3, size=0.3):
    """A problem without symmetry and a head for it: Sigma and Sigma_q commute neither with each other nor with A."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(2, d, 2 * d))
    covariance, query_covariance = roots @ roots.mT / (2 * d)
    problem = InContextRegression(covariance, 0.6, 1.7, query_covariance)
    return problem, size * rng.normal(size=(d, d)) + 0.2 * np.eye(d), 1.3


@pytest.mark.parametrize(("d", "omega", "b", "length", "noise", "risk"), ISOTROPIC)
def test_reference_values(d, omega, b, length, noise, risk):
    problem = InContextRegression(np.eye(d), np.sqrt(noise))
    assert problem.softmax_risk(omega * np.eye(d), b, length).value == pytest.approx(risk, rel=1e-11)
    assert problem.risk_and_gradient("softmax", omega * np.eye(d), b, length)[0] == pytest.approx(risk, rel=1e-9)


@pytest.mark.parametrize(("d", "length"), [(5, 23), (7, 11)])
def test_exact_risks_against_raw_prompts(d, length):
    problem, A, b = general(d)
    tokens, query, target = problem.sample(100_000, length, np.random.default_rng(d))
    for head, exact in (
        (softmax_head(A, b), problem.softmax_risk(A, b, length).value),
        (linear_head(A, b), problem.linear_risk(A, b, length)),
    ):
        losses = (head(tokens, query) - target) ** 2 / 2
        assert_mean(losses, exact)
        with pytest.raises(AssertionError):
            assert_mean(losses, exact * (1 + 8 * losses.std() / losses.mean() / np.sqrt(len(losses))))


@pytest.mark.parametrize("length", [2, 11])
def test_the_risk_of_moment_attention_on_prompts(length):
    """40,000 prompts with a head that has no symmetry; false-alarm rate 1e-6."""
    rng = np.random.default_rng(0)
    problem = InContextRegression(
        covariance_matrix("toeplitz(0.6)", 3), 0.7, task_variance=0.5, query_covariance=np.diag([1.0, 2, 3])
    )
    A, b = rng.standard_normal((3, 3)) / 3, 2.0
    tokens, query, target = problem.sample(40_000, length, rng)
    out = MomentAttention()(tokens[..., :3], (query @ A.T)[:, None], b * tokens[..., 3:])[:, 0, 0]
    assert_mean((out - target) ** 2 / 2, float(problem.moment_risk(A, b, length)))
    with pytest.raises(AssertionError):
        assert_mean((out - target) ** 2 / 2, float(problem.linear_risk(A, b, length)))
    assert problem.moment_risk(A, b, 1e15) == pytest.approx(problem.infinite_risk(A, b))


def test_the_law_of_the_prompts():
    problem, *_ = general(5)
    tokens, query, target = problem.sample(40_000, 2, np.random.default_rng(0))
    x, y = tokens[..., :-1], tokens[..., -1]
    assert_mean(x[:, 0, 1] * x[:, 0, 4], problem.covariance[1, 4])
    assert_mean(query[:, 1] * query[:, 4], problem.query_covariance[1, 4])
    assert_mean(y[:, 0] ** 2, problem.task_variance * problem.token_variance)
    assert_mean(y[:, 0] * y[:, 1], 0.0)  # x_0' x_1 has mean zero, and the noise is fresh
    cross = np.vecdot(x[:, 0], query)
    assert_mean(y[:, 0] * target - problem.task_variance * cross, 0.0)  # the same w in both


@pytest.mark.parametrize("attention", ["infinite", "softmax", "linear"])
@pytest.mark.parametrize(("d", "length"), [(1, 2), (5, 17), (7, 10**6)])
def test_gradients_against_finite_differences(attention, d, length):
    problem, A, b = general(d)
    rng = np.random.default_rng(8)
    H, h = rng.normal(size=(d, d)), rng.normal()
    _, gradient = problem.risk_and_gradient(attention, A, b, length)

    def risk(t):
        if attention == "softmax":
            return problem.softmax_risk(A + t * H, b + t * h, length, rtol=1e-12).value
        return problem.risk_and_gradient(attention, A + t * H, b + t * h, length)[0]

    e = 4e-3
    coefficients = {1: 45, 2: -9, 3: 1}
    difference = sum(c * (risk(k * e) - risk(-k * e)) for k, c in coefficients.items()) / (60 * e)
    assert np.vdot(gradient.A, H) + gradient.b * h == pytest.approx(difference, rel=2e-8)


@pytest.mark.parametrize("size", [1e-8, 1e-3])
def test_the_gradient_at_a_small_start(size):
    """There the risk is its expansion: dR/dA = -(1 - 1/L) b Sigma Sigma_q / tau, up to the second order."""
    problem, A, _ = general(5)
    gradient = problem.risk_and_gradient("softmax", size * A, 0.7, 30)[1].A
    leading = -problem.task_variance * 0.7 * (1 - 1 / 30) * problem.covariance @ problem.query_covariance
    assert np.linalg.norm(gradient - leading) < 10 * size * np.linalg.norm(leading)


def test_zero_scores_average_the_labels():
    problem, A, b = general(5)
    mean_of_labels = (np.trace(problem.query_covariance) + b**2 * problem.token_variance / 9) / 2
    for zero in (0 * A, 1e-150 * A):
        assert problem.softmax_risk(zero, b, 9).value == pytest.approx(problem.task_variance * mean_of_labels)
    near, at = (problem.risk_and_gradient("softmax", x * A, b, 9)[1] for x in (1e-9, 0.0))
    np.testing.assert_allclose(near.A, at.A, atol=1e-7)
    assert near.b == pytest.approx(at.b)


def test_one_token_is_repeated_whatever_the_scores():
    problem, A, b = general(5)
    exact = problem.task_variance * (np.trace(problem.query_covariance) + b**2 * problem.token_variance) / 2
    assert problem.softmax_risk(A, b, 1).value == pytest.approx(exact)
    np.testing.assert_allclose(problem.risk_and_gradient("softmax", A, b, 1)[1].A, 0, atol=1e-10)


@pytest.mark.parametrize(("d", "omega"), [(3, 1.1), (64, 0.13)])
def test_isotropic_risk_by_radial_quadrature(d, omega):
    """Against the formula averaged over |x| ~ chi_d by brute force; with omega = 1.1 rare queries matter."""
    b, length, noise = 1.4, 10**6, 0.2
    r = np.linspace(1e-6, 8 + 1.5 * np.sqrt(d), 1501)
    s = omega * r
    w = softmax_functionals(s, length)
    y, v = w.inverse_participation, w.squared_error
    n2 = omega**2 * r**2
    integrand = (b * omega - 1) ** 2 * r**2 + (v - 2 * s**2 * y) * b**2 * n2 / s**2
    integrand += 2 * b * y * omega * r**2 + y * b**2 * (d + noise - n2 / s**2)
    exact = np.trapezoid(chi(d).pdf(r) * integrand, r) / 2
    problem = InContextRegression(np.eye(d), np.sqrt(noise))
    assert problem.softmax_risk(omega * np.eye(d), b, length).value == pytest.approx(exact, rel=1e-8)


def test_rotations_and_permutations():
    problem, A, b = general(5)
    turned = ortho_group.rvs(5, random_state=np.random.default_rng(2))
    permuted = np.eye(5)[[3, 0, 4, 1, 2]]
    risk, gradient = problem.risk_and_gradient("softmax", A, b, 40)
    for R in (turned, permuted):
        rotated = InContextRegression(
            R @ problem.covariance @ R.T, problem.noise_std, problem.task_variance, R @ problem.query_covariance @ R.T
        )
        value, moved = rotated.risk_and_gradient("softmax", R @ A @ R.T, b, 40)
        assert value == pytest.approx(risk, rel=1e-10)
        np.testing.assert_allclose(R.T @ moved.A @ R, gradient.A, rtol=1e-7, atol=1e-8)
        assert rotated.linear_risk(R @ A @ R.T, b, 40) == pytest.approx(problem.linear_risk(A, b, 40))


def test_units():
    """A task variance, and x measured in other units, change the risk as they must."""
    problem, A, b = general(5)
    unit = InContextRegression(
        problem.covariance, problem.noise_std / np.sqrt(1.7), query_covariance=problem.query_covariance
    )
    scaled = InContextRegression(9 * problem.covariance, 3 * 0.6, 1.7, 9 * problem.query_covariance)
    for attention in ("infinite", "softmax", "linear"):
        value, gradient = problem.risk_and_gradient(attention, A, b, 12)
        by_unit, unit_gradient = unit.risk_and_gradient(attention, A, b, 12)
        assert value == pytest.approx(1.7 * by_unit, rel=1e-9)
        np.testing.assert_allclose(gradient.A, 1.7 * unit_gradient.A, rtol=1e-7)
        # x -> 3x with scores kept (A / 9): predictions and targets are three times as large.
        assert scaled.risk_and_gradient(attention, A / 9, b, 12)[0] == pytest.approx(9 * value, rel=1e-9)


def test_the_limit_of_long_prompts():
    problem, A, b = general(5, size=0.1)
    A = A * np.sqrt(0.25 / problem.coupling(A))
    limit = problem.infinite_risk(A, b)
    lengths = np.array([1e4, 1e8, 1e12])
    softmax = problem.softmax_risk(A, b, lengths).value - limit
    linear = problem.linear_risk(A, b, lengths) - limit
    np.testing.assert_allclose(linear * lengths, linear[0] * 1e4, rtol=1e-2)
    constant = problem.long_prompt_constant(A, b)
    assert softmax[1] * 1e8 == pytest.approx(constant, rel=1e-2)
    assert softmax[2] * 1e12 == pytest.approx(constant, rel=1e-4)
    assert problem.long_prompt_constant(2 * A, b) == np.inf  # coupling 1
    zero = problem.task_variance * b**2 * problem.token_variance / 2
    assert problem.long_prompt_constant(0 * A, b) == pytest.approx(zero)


def test_the_constant_at_the_isotropic_optimum():
    problem = InContextRegression(np.eye(5), np.sqrt(0.1))
    head = problem.optimum()
    assert problem.long_prompt_constant(*head) == pytest.approx(8113, abs=1)
    assert 0.2 < 1e12 * problem.softmax_risk(*head, 10**12).value / 8113 < 0.3


def test_the_optimum_and_its_coupling():
    covariance = covariance_matrix("toeplitz(0.5)", 5)
    problem = InContextRegression(covariance, 0.3)
    A, b = problem.optimum()
    assert problem.infinite_risk(A, b) < 1e-28
    assert np.linalg.norm(A) == pytest.approx(b)
    inverse_square = np.trace(np.linalg.inv(covariance @ covariance))
    assert b == pytest.approx(inverse_square**0.25)
    assert problem.coupling(A) == pytest.approx(inverse_square**-0.5)
    np.testing.assert_allclose(problem.risk_and_gradient("infinite", A, b)[1].A, 0, atol=1e-13)


def test_the_published_data_apply_the_covariance_twice():
    """Prompt covariance (C C)(C C)', C the Cholesky root of toeplitz(0.5), query N(0, I): another optimum."""
    intended = covariance_matrix("toeplitz(0.5)", 5)
    root = np.linalg.cholesky(intended)
    twice = (root @ root) @ (root @ root).T
    problem = InContextRegression(twice, np.sqrt(0.1), query_covariance=np.eye(5))
    assert 2 * problem.infinite_risk(*InContextRegression(intended, 0).optimum()) == pytest.approx(2.522, abs=5e-4)
    assert np.linalg.cond(twice) == pytest.approx(38.4, abs=0.05)
    assert np.linalg.cond(intended) == pytest.approx(6.3, abs=0.05)
    A, _ = problem.optimum()
    assert InContextRegression(intended, 0).coupling(InContextRegression(intended, 0).optimum().A) == pytest.approx(
        0.254, abs=5e-4
    )
    assert problem.coupling(A) == pytest.approx(0.828, abs=5e-4)


def test_balanced_start():
    problem, *_ = general(5)
    theta = np.random.default_rng(0).normal(size=(5, 5))
    A, b = problem.balanced_init(0.3, theta)
    assert np.linalg.norm(A) == pytest.approx(0.3) == b
    np.testing.assert_allclose(A / A[0, 0], theta @ theta.T / (theta @ theta.T)[0, 0])
    norm = np.linalg.eigvalsh(problem.covariance)[-1]
    assert problem.largest_alpha() == pytest.approx(np.sqrt(2) / (5**0.25 * norm))
    problem.balanced_init(10 * problem.largest_alpha())  # beyond the interval is allowed


def test_stable_step():
    problem, *_ = general(3)
    A, b = problem.optimum()
    hessian = np.empty((10, 10))
    for j, e in enumerate(1e-6 * np.eye(10)):
        ahead, behind = (
            problem.risk_and_gradient("infinite", A + sign * e[:9].reshape(3, 3), b + sign * e[9])[1]
            for sign in (1, -1)
        )
        hessian[j] = (np.append(ahead.A, ahead.b) - np.append(behind.A, behind.b)) / 2e-6
    assert stable_step(infinite_hessian(problem, problem.optimum())) == pytest.approx(
        2 / np.linalg.eigvalsh(hessian)[-1], rel=1e-6
    )


def test_the_numerical_error_is_small_where_it_can_be_and_honest_where_it_cannot():
    problem = InContextRegression(covariance_matrix("condition(100)", 6), 0.5)
    usual = problem.softmax_risk(0.3 * np.eye(6), 1.0, [10, 1000, 10**9], rtol=1e-9)
    assert np.all(usual.numerical_error < 1e-9 * usual.value)
    extreme = problem.softmax_risk(30 * np.eye(6), 1.0, 10)  # scores beyond the end of the tables
    assert extreme.numerical_error > 1e-6 * extreme.value


def test_other_token_measures():
    problem, *_ = general(5)
    x = problem.sample(20_000, 3, np.random.default_rng(1), Rademacher(5)).tokens[..., :-1]
    whitened = x @ np.linalg.inv(problem.covariance_root)
    np.testing.assert_allclose(np.abs(whitened), 1, atol=1e-9)
    with pytest.raises(ValueError, match="mean 0 and covariance I"):
        problem.sample(2, 3, np.random.default_rng(1), Gaussian(np.zeros(5), 2 * np.eye(5)))
    with pytest.raises(ValueError, match="dimension 5, received 4"):
        problem.sample(2, 3, np.random.default_rng(1), Rademacher(4))


BAD_PROBLEMS = [
    ((np.diag([1.0, 0.0]), 0.1), "positive definite"),
    ((np.diag([1.0, -1.0]), 0.1), "positive semidefinite"),
    (([[1.0, 2.0], [0.0, 1.0]], 0.1), "not symmetric"),
    ((np.eye(2), -0.1), "noise_std must be nonnegative, received -0.1"),
    ((np.eye(2), 0.1, 0.0), "task_variance must be positive, received 0"),
    ((np.eye(2), 0.1, 1.0, np.eye(3)), "expected shape"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_PROBLEMS)
def test_bad_problems(arguments, message):
    with pytest.raises(ValueError, match=message):
        InContextRegression(*arguments)


def test_bad_heads_and_lengths():
    problem = InContextRegression(np.eye(2), 0.1)
    with pytest.raises(ValueError, match=r"A must have shape \(2, 2\), received \(3, 3\)"):
        problem.softmax_risk(np.eye(3), 1.0, 10)
    with pytest.raises(ValueError, match="finite"):
        problem.infinite_risk(np.full((2, 2), np.nan), 1.0)
    for length in (0, 2.5, -3, np.inf):
        with pytest.raises(ValueError, match="prompt lengths must be whole and at least 1"):
            problem.softmax_risk(np.eye(2), 1.0, length)
        with pytest.raises(ValueError, match="prompt lengths must be whole and at least 1"):
            problem.linear_risk(np.eye(2), 1.0, length)
    for alpha in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="alpha must be positive"):
            problem.balanced_init(alpha)
    with pytest.raises(ValueError, match="theta must have shape"):
        problem.balanced_init(0.1, np.eye(3))
    with pytest.raises(ValueError, match="theta must not be zero"):
        problem.balanced_init(0.1, np.zeros((2, 2)))
    with pytest.raises(ValueError, match="attention must be"):
        problem.risk_and_gradient("hard", np.eye(2), 1.0, 10)
    with pytest.raises(ValueError, match="needs one prompt length"):
        problem.risk_and_gradient("softmax", np.eye(2), 1.0)


def test_moment_attention_at_a_small_readout():
    """dR/db = -(1 - 1/L) tr(Sigma A Sigma_q) at b = 0, from E sum w_i y_i (w . x_q)."""
    problem, A, _ = general(5)
    slope = -problem.task_variance * np.trace(problem.covariance @ A @ problem.query_covariance)
    for length in (1, 2, 7):
        ahead, behind = (problem.moment_risk(A, b, length) for b in (0.1, -0.1))
        assert (ahead - behind) / 0.2 == pytest.approx((1 - 1 / length) * slope, rel=1e-10, abs=1e-12)


def test_queries_of_another_law():
    problem, *_ = general(5)
    query = problem.sample(500, 1, np.random.default_rng(1), Rademacher(5)).query
    np.testing.assert_allclose(np.abs(query @ np.linalg.inv(problem.query_root)), 1, atol=1e-9)


def test_the_numerical_error_covers_what_lies_beyond_the_table():
    """Two tokens in dimension 1, where eta and zeta are integrals of tanh(s u / sqrt(2)), u normal, however loud."""
    S, noise, b = 1.3, 0.5, 1.2
    u, step = np.linspace(-9, 9, 2401, retstep=True)
    mass = np.exp(-(u**2) / 2) * step / np.sqrt(2 * np.pi)
    for a in (12.0, 30.0):
        x = np.sqrt(S) * u
        s = np.maximum(a * np.sqrt(S) * np.abs(x), 1e-9)[:, None]
        tanh = np.tanh(s * u / np.sqrt(2))
        eta, zeta = 0.5 + tanh**2 @ mass / 2, 0.5 + (tanh * u / np.sqrt(2) - s) ** 2 @ mass
        W = (zeta - eta) / s[:, 0] ** 2 - 2 * eta
        twice = (b * S * a - 1) ** 2 * S + mass @ (b**2 * (S + noise**2) * eta + (b * S * a * x) ** 2 * W)
        exact = (twice + 2 * b * S * a * mass @ (eta * x**2)) / 2
        found = InContextRegression([[S]], noise).softmax_risk([[a]], b, 2)
        assert abs(found.value - exact) < found.numerical_error < 0.06 * exact


def test_the_long_prompt_constant_is_infinite_from_coupling_one_half_on():
    problem, A, b = general(5)
    A = A / np.sqrt(problem.coupling(A))
    assert np.isfinite(problem.long_prompt_constant(np.sqrt(0.49) * A, b))
    assert problem.long_prompt_constant(np.sqrt(0.51) * A, b) == np.inf
