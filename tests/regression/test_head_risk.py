"""Risks of heads away from the block: against raw prompts, with honest errors, the same draws for all."""

import numpy as np
import pytest
from scipy.special import softmax
from statistics_checks import assert_mean

from lib.regression.head_risk import _losses, checkpoint_risks, head_risks, held_out_risks, softmax_losses
from lib.regression.sgd import block_start, full_start, train
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Rademacher

PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.7, 1.5, np.diag([3.0, 1.0, 0.2]))
RNG = np.random.default_rng(6)
U, v = 0.3 * RNG.normal(size=(4, 3)), RNG.normal(size=4)


def started(start, attention=("softmax", "linear"), length=9):
    """A training of no steps, which is its start."""
    rngs = [np.random.default_rng(0)]
    return train(PROBLEM, length, start, step_size=0.1, n_steps=0, rngs=rngs, attention=attention)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_against_raw_prompts_with_other_queries(kind):
    """A false alarm in 1e6 (the error of the averaged risk is a tenth of that of the prompts)."""
    tokens, query, target = PROBLEM.sample(60_000, 3, np.random.default_rng(1))
    scores = np.einsum("nld,nd->nl", tokens, query @ U.T)
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) if kind == "softmax" else scores / 3
    losses = (np.einsum("nl,nld,d->n", weights, tokens, v) - target) ** 2 / 2
    risk, error = head_risks(PROBLEM, kind, U, v, 3, 100_000, np.random.default_rng(2))
    assert error < losses.std() / np.sqrt(len(losses))
    assert_mean(losses, float(risk), false_alarm=1e-8)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
@pytest.mark.parametrize("length", [1, 2])
def test_given_task_and_query_against_quadrature(kind, length):
    """Over the scores and values of one or two tokens, whose covariance is written out here, noise of labels included.

    False if linear attention forgets c^2 / L, or G the noise.
    """
    w, query = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3))
    x, weight = np.polynomial.hermite_e.hermegauss(24)
    grid = np.stack(np.meshgrid(*[x] * (2 * length), indexing="ij"), -1).reshape(-1, length, 2)
    weight = np.prod(np.stack(np.meshgrid(*[weight] * (2 * length)), -1), -1).ravel()
    expected = []
    for task, at in zip(w, query, strict=True):
        mixed = PROBLEM.covariance @ task
        G = np.block([[PROBLEM.covariance, mixed[:, None]], [mixed[None], task @ mixed + PROBLEM.noise_std**2]])
        pair = np.stack([U @ at, v])
        score, value = np.moveaxis(grid @ np.linalg.cholesky(pair @ G @ pair.T).T, -1, 0)
        shares = softmax(score, axis=1) if kind == "softmax" else score / length
        expected.append(np.average(((shares * value).sum(1) - task @ at) ** 2 / 2, weights=weight))
    np.testing.assert_allclose(_losses(PROBLEM, kind, U, v, length, w, query), expected, rtol=1e-6)
    if kind == "softmax":
        np.testing.assert_allclose(softmax_losses(PROBLEM, U, v, length, w, query)[0], expected, rtol=1e-6)


def test_the_standard_errors_are_those_of_repetition():
    """Over 300 repetitions: their ratio to the deviation is within 25 %, six standard errors, of 1."""
    found = np.array([head_risks(PROBLEM, "softmax", U, v, 9, 256, np.random.default_rng(k)) for k in range(300)])
    assert found[:, 1].mean() / found[:, 0].std(ddof=1) == pytest.approx(1, abs=0.25)
    held_out = np.array([np.ravel(held_out_risks(PROBLEM, HELD, 64, np.random.default_rng(k))) for k in range(300)])
    assert held_out[:, 1].mean() / held_out[:, 0].std(ddof=1) == pytest.approx(1, abs=0.25)


HELD = started(block_start(PROBLEM.optimum()), ("softmax",))


def test_every_arm_has_the_same_draws():
    both = started(full_start(PROBLEM.optimum()), ("softmax", "softmax"))
    both.parameters["U"][..., 3, 0] = 0.3  # out of the block, where the risk is an average over draws
    risks, errors = checkpoint_risks(PROBLEM, both, n_draws=100, rng=np.random.default_rng(0))
    assert risks[0] == risks[1]
    assert errors[0] > 0


def test_another_prompt_length_and_another_law():
    exact = [PROBLEM.risk_and_gradient(kind, *PROBLEM.optimum(), 40)[0] for kind in ("softmax", "linear")]
    risks, errors = checkpoint_risks(PROBLEM, started(block_start(PROBLEM.optimum())), length=40)
    np.testing.assert_allclose(risks[:, 0, 0], exact, rtol=1e-12)
    assert np.all(errors == 0)
    signs, _ = held_out_risks(PROBLEM, HELD, 20_000, np.random.default_rng(0), Rademacher(3))
    normal, error = held_out_risks(PROBLEM, HELD, 20_000, np.random.default_rng(0))
    assert abs(signs - normal) > 8 * error
