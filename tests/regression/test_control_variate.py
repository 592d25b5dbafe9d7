"""Gradients of raw prompts: finite differences, exact means, leading-order gains."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.regression import control_variate, step_rules
from lib.regression.control_variate import KINDS, mean_gradient, prompt_gradients
from lib.regression.head import BlockHead, Prompts
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

ISOTROPIC = InContextRegression(np.eye(5), np.sqrt(0.1))
PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
GENERAL = BlockHead(np.array([[0.3, 0.1, 0.0], [-0.1, 0.4, 0.2], [0.1, 0.0, 0.2]]), 1.2)


def test_prompt_gradients_are_those_of_the_loss():
    """Against finite differences of (prediction - target)^2 / 2, with heads that differ along a leading axis."""
    prompts = PROBLEM.sample(2, 7, np.random.default_rng(0))
    heads = [GENERAL, PROBLEM.optimum()]
    stacked = Prompts(*(np.stack([part, part]) for part in prompts))
    batch = prompt_gradients(stacked, np.stack([h.A for h in heads]), np.array([h.b for h in heads]))
    x, y = prompts.tokens[..., :-1], prompts.tokens[..., -1]

    def losses(point, kind):
        A, b = BlockHead.from_flat(point)
        scores = np.einsum("nld,nd->nl", x, prompts.query @ A.T)
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        weights = {"softmax": p, "linear": scores / 7, "affine": (1 + scores) / 7}[kind]
        return (b * (weights * y).sum(1) - prompts.target) ** 2 / 2

    for kind in KINDS:
        for k, head in enumerate(heads):
            point = head.flat()
            moves = 1e-5 * np.eye(10)
            numeric = [(losses(point + e, kind) - losses(point - e, kind)) / 2e-5 for e in moves]
            np.testing.assert_allclose(batch[kind][k], np.transpose(numeric), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_gradients_are_exact(kind):
    """Each of ten entries, at a false-alarm rate of 1e-6; anisotropic, with a task variance, a general head."""
    prompts = PROBLEM.sample(60_000, 6, np.random.default_rng(1))
    gradients = prompt_gradients(prompts, *GENERAL)[kind]
    for entry, exact in zip(gradients.T, mean_gradient(PROBLEM, kind, GENERAL, 6), strict=True):
        assert_mean(entry, exact)


def test_the_leading_order_gains():
    """Proportional to L off the valley; a constant on it, below the bound 1.70; undefined from coupling 1/2 on."""
    draws = {"n_draws": 2**16}
    start = control_variate.predicted_gains(PROBLEM, PROBLEM.balanced_init(0.3), [1e6, 1e7],
                                            np.random.default_rng(0), **draws)  # fmt: skip
    for gains in start.values():
        assert gains[1] / gains[0] == pytest.approx(10, rel=1e-3)
    valley = step_rules.long_prompt(PROBLEM).head
    flat = control_variate.predicted_gains(PROBLEM, valley, [100, np.inf], np.random.default_rng(0), **draws)
    for gains in flat.values():
        assert gains[0] == pytest.approx(gains[1], rel=1e-9)
    assert 1.2 < flat["linear"][1] < 1.71 < flat["affine"][1]
    frozen = control_variate.predicted_gains(PROBLEM, BlockHead(2 * np.eye(3), 1.0), [10], np.random.default_rng(0))
    assert np.isnan(frozen["linear"]).all()


def test_the_golden_bound_is_that_of_the_variances():
    """Linear over softmax variance of the prediction on the valley, at chi^2 = share s^2 sigma_y^2, share <= 1."""
    s2, share = np.linspace(1e-6, 20, 40_001)[:, None], np.linspace(0, 1, 21)
    linear = (1 + share) * s2 / (np.exp(s2) * (1 + share * s2))
    k = np.unravel_index(linear.argmax(), linear.shape)
    assert s2[k[0], 0] == pytest.approx((np.sqrt(5) - 1) / 2, abs=1e-3)
    assert share[k[1]] == 1
    assert 1 / (1 - linear.max()) == pytest.approx(1.70, abs=5e-3)


def test_the_mean_squares_of_one_dimension():
    """Variance of the limit's gradient, and mean square of softmax's influence in the valley, in closed form.

    With scalars S, Q, a, b, task variance t and lambda = a^2 S Q, the gradient of the limit is (b S a - 1) S w^2 q^2
    (b, a), with Var(w^2 q^2) = 8 t^2 Q^2. In the valley the influence is b e^{score - s^2/2} (y - chi) w S q (b, a): a
    token is tilted by twice the score, a query by e^{s^2}. A million draws, within 5 %, about five standard errors.
    """
    S, Q, t, noise, n = 1.3, 0.8, 1.5, 2.5, 2**20
    problem = InContextRegression([[S]], noise, t, [[Q]])
    a, b = 0.25, 1.4
    limit = control_variate._mean_squares(problem, BlockHead(np.array([[a]]), b), n, np.random.default_rng(0))[0]
    assert limit == pytest.approx(8 * t**2 * Q**2 * (b * S * a - 1) ** 2 * S**2 * (a**2 + b**2), rel=0.05)

    a = 1 / (b * S)
    factor = 1 / (1 - 2 * a**2 * S * Q)
    found = control_variate._mean_squares(problem, BlockHead(np.array([[a]]), b), n, np.random.default_rng(0))[1]
    braces = (3 * t**2 * S + t * noise**2) * Q * factor + 3 * t**2 * S**2 * a**2 * 3 * (Q * factor) ** 2
    assert found == pytest.approx(b**2 * S**2 * (a**2 + b**2) * np.sqrt(factor) * braces, rel=0.05)


def test_from_coupling_one_half_on_no_gain_is_predicted():
    head = BlockHead(np.sqrt(0.6) * np.eye(5), 1.0)
    assert ISOTROPIC.coupling(head.A) == pytest.approx(0.6)
    gains = control_variate.predicted_gains(ISOTROPIC, head, [10, 100], np.random.default_rng(0), n_draws=100)
    assert np.isnan(list(gains.values())).all()
