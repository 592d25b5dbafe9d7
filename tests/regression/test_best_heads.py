"""The best heads and ridge regression: stationarity, optimality, closed forms and prompts."""

from types import SimpleNamespace

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.head import BlockHead
from lib.regression.predictors import linear_head, ridge, ridge_risk, risks_on_prompts, softmax_head
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

TOEPLITZ = covariance_matrix("toeplitz(0.5)", 5)


def assert_agree(a, b):
    """Two independent estimates, within five standard errors: a false alarm in 2e6."""
    assert abs(a.value - b.value) < 2.55 * np.hypot(a.half_width, b.half_width)


@pytest.mark.parametrize("length", [3, 40, 10**5])
def test_the_best_linear_head_is_stationary_balanced_and_tends_to_the_optimum(length):
    problem = InContextRegression(TOEPLITZ, 0.4, 1.7, covariance_matrix("condition(5)", 5))
    head = best_linear(problem, length)
    assert problem.risk_and_gradient("linear", *head, length)[1].norm() < 1e-13
    assert np.linalg.norm(head.A) == pytest.approx(head.b)
    optimum = problem.optimum()
    assert np.linalg.norm(head.b * head.A - optimum.b * optimum.A) < 100 / length * optimum.b**2


@pytest.mark.parametrize("length", [5, 20, 1000, 10**9])
def test_the_best_softmax_head_is_stationary_and_no_neighbor_is_better(length):
    problem = InContextRegression(TOEPLITZ, 0.4, 1.7)
    head = best_softmax(problem, length)
    risk, gradient = problem.risk_and_gradient("softmax", *head, length)
    assert gradient.norm() < 1e-9
    assert risk <= problem.softmax_risk(*best_linear(problem, length), length).value
    rng = np.random.default_rng(0)
    for k in (0.9, 1.1):  # along the flat direction, and off the commuting family
        assert problem.softmax_risk(head.A / k, k * head.b, length).value > risk
        away = head.A + 0.1 * rng.normal(size=(5, 5))
        assert problem.softmax_risk(away, head.b, length).value > risk


def test_the_best_softmax_head_of_long_isotropic_prompts():
    """|A|_F^2 -> 0.61567, b -> 2.84977, L risk -> 48.71: far from the infinite prompt's 2.236 and 1.495."""
    problem = InContextRegression(np.eye(5), np.sqrt(0.1))
    head = best_softmax(problem, 10**12)
    assert np.linalg.norm(head.A) ** 2 == pytest.approx(0.61567, abs=1e-5)
    assert head.b == pytest.approx(2.84977, abs=1e-5)
    assert 1e12 * problem.softmax_risk(*head, 10**12).value == pytest.approx(48.71, abs=5e-3)
    assert problem.long_prompt_constant(*head) == pytest.approx(48.7123, abs=1e-4)


def test_the_best_softmax_head_without_a_common_eigenbasis():
    rng = np.random.default_rng(5)
    root = rng.normal(size=(3, 9))
    problem = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.0, root @ root.T / 9)
    head = best_softmax(problem, 50, problem.balanced_init(0.5, rng.normal(size=(3, 3))))
    assert problem.risk_and_gradient("softmax", *head, 50)[1].norm() < 1e-9


def test_one_token_is_best_ignored():
    problem = InContextRegression(np.eye(3), 0.4)
    assert best_softmax(problem, 1).b == 0


@pytest.mark.parametrize("length", [3, 12])
@pytest.mark.parametrize("penalty", [0.0, 0.35, None])
def test_ridge_risk_against_prompts(length, penalty):
    problem = InContextRegression(TOEPLITZ, 0.4, 1.7, np.eye(5))
    bayes = 0.16 / 1.7
    raw = risks_on_prompts(
        problem,
        length,
        30_000,
        np.random.default_rng(length),
        {"ridge": ridge(bayes if penalty is None else penalty)},
    )["ridge"]
    conditional = ridge_risk(problem, length, 30_000, np.random.default_rng(1), penalty)
    assert_agree(raw, conditional)
    if penalty != 0:  # least squares on few tokens is heavy-tailed either way
        assert conditional.half_width < raw.half_width


def test_least_squares_has_the_inverse_wishart_mean():
    """tr(Sigma_q Sigma^-1) sigma_eps^2 / (L - d - 1) / 2, for any Sigma."""
    problem = InContextRegression(TOEPLITZ, 0.4, 1.7, np.eye(5))
    for length in (12, 10**6):
        found = ridge_risk(problem, length, 20_000, np.random.default_rng(length), 0.0)
        exact = np.trace(np.linalg.inv(TOEPLITZ)) * 0.16 / (length - 6) / 2
        assert abs(found.value - exact) < 2.55 * found.half_width
        assert found.half_width < 0.039 * exact


def test_ridge_without_noise_fails_only_off_the_span_of_the_prompt():
    problem = InContextRegression(np.eye(5), 0.0)
    assert ridge_risk(problem, 5, 100, np.random.default_rng(0)).value < 1e-15
    found = ridge_risk(problem, 3, 100, np.random.default_rng(0))
    assert found.value == pytest.approx(1.0)  # two of five directions unseen, halved


def test_bayes_beats_every_other_predictor_on_the_same_prompts():
    problem = InContextRegression(TOEPLITZ, 0.4, 1.7)
    heads = {
        "bayes": ridge(0.16 / 1.7),
        "softmax": softmax_head(*best_softmax(problem, 30)),
        "linear": linear_head(*best_linear(problem, 30)),
    }
    risks = risks_on_prompts(problem, 30, 20_000, np.random.default_rng(0), heads)
    assert risks["bayes"].value < risks["linear"].value < risks["softmax"].value
    again = risks_on_prompts(problem, 30, 20_000, np.random.default_rng(0), {"bayes": heads["bayes"]})
    assert again["bayes"] == risks["bayes"]  # the same prompts whoever else is watching


def test_blocks_of_prompts_are_independent(monkeypatch):
    problem = InContextRegression(np.eye(3), 0.4)
    monkeypatch.setattr("lib.regression.predictors.NUMBERS_IN_MEMORY", 1000)
    found = risks_on_prompts(
        problem, 10, 5_000, np.random.default_rng(0), {"zero": lambda tokens, query: 0 * query[:, 0]}
    )
    assert abs(found["zero"].value - 1.5) < 2.55 * found["zero"].half_width


def test_bad_input():
    problem = InContextRegression(np.eye(3), 0.4)
    with pytest.raises(ValueError, match="penalty"):
        ridge(-1.0)
    with pytest.raises(ValueError, match="penalty"):
        ridge_risk(problem, 10, 5, np.random.default_rng(0), -1.0)
    with pytest.raises(ValueError, match="at least 2 prompts, received 1"):
        ridge_risk(problem, 10, 1, np.random.default_rng(0))
    for find in (best_linear, best_softmax):
        with pytest.raises(ValueError, match="whole and at least 1"):
            find(problem, 0)


def test_the_checker_can_fail():
    problem = InContextRegression(np.eye(3), 0.4)
    losses = problem.sample(2000, 4, np.random.default_rng(0)).target ** 2 / 2
    assert_mean(losses, 1.5)
    with pytest.raises(AssertionError):
        assert_mean(losses, 1.9)


def test_the_default_penalty_is_bayes():
    problem = InContextRegression(TOEPLITZ, 0.4, 1.7)
    found = [ridge_risk(problem, 12, 50, np.random.default_rng(0), penalty) for penalty in (None, 0.16 / 1.7)]
    assert found[0] == found[1]


def test_a_softmax_head_scores_tokens_by_the_image_of_the_query():
    rng = np.random.default_rng(2)
    A, tokens, query = rng.normal(size=(3, 3)), rng.normal(size=(1, 6, 4)), rng.normal(size=(1, 3))
    weights = np.exp(tokens[0, :, :3] @ (A @ query[0]))
    expected = 1.3 * (weights @ tokens[0, :, 3]) / weights.sum()
    assert softmax_head(A, 1.3)(tokens, query)[0] == pytest.approx(expected, rel=1e-12)


def test_a_search_starts_where_it_is_told_and_says_when_it_failed(monkeypatch):
    problem = InContextRegression(TOEPLITZ, 0.4)
    np.testing.assert_array_equal(best_softmax(problem, 1, BlockHead(0.7 * np.eye(5), 2.0)).A, 0.7 * np.eye(5))
    astray = SimpleNamespace(x=np.ones(6))
    monkeypatch.setattr("lib.regression.best_heads.root", lambda *arguments, **options: astray)
    with pytest.raises(RuntimeError, match="no stationary head was found at prompt length 20"):
        best_softmax(problem, 20)
