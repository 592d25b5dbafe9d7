"""Training from random starts, and the head that exchanges x and y."""

import math

import numpy as np
import pytest

from lib.experiments.training_stability import random_starts as experiments
from lib.regression.task import InContextRegression


@pytest.fixture(scope="module")
def problem():
    return InContextRegression(np.diag([2.0, 1.0, 0.5]), 0.3)


def test_the_exchanged_head_leaves_the_other_directions(problem):
    # For long prompts the risk tends to that of the directions which it does not learn, from above.
    risks = [experiments.exchanged_risk(problem, length, seed=0) for length in (50, 1000, 10**6)]
    assert risks == sorted(risks, reverse=True)
    assert risks[-1] == pytest.approx((1.0 + 0.5) / 2, rel=0.02)
    assert risks[0] > 0.9


def test_the_exchanged_risk_is_that_of_raw_prompts(problem):
    # One head of the family, with the size of a that is best at 30 tokens within a factor: no prompt beats the optimum.
    rng, n, length = np.random.default_rng(1), 20_000, 30
    tokens, query, target = problem.sample(n, length, rng)
    best = experiments.exchanged_risk(problem, length, seed=0)
    losses = {}
    for a in (0.1, 0.2, 0.3, 0.45):
        scores = a * tokens[..., -1] * query[:, :1]
        p = np.exp(scores - scores.max(1, keepdims=True))
        m = np.vecdot(p / p.sum(1, keepdims=True), tokens[..., 0])
        c = (m @ target) / (m @ m)
        losses[a] = ((c * m - target) ** 2 / 2).mean()
    assert min(losses.values()) == pytest.approx(best, rel=0.05)  # its standard error is about 1.5 %
    assert losses[0.1] > 1.05 * best


def test_runs_are_told_apart_and_nothing_beats_the_best_head(problem):
    table = experiments.random_starts(problem, 20, 0.04, 300, 8, 64, seed=0)
    runs = table.groupby("reads")["runs"].first()
    assert runs.sum() == 8
    last = table.groupby("reads").last()
    assert (last["measured"] > 0.95 * last["best"]).all()
    assert last.loc["y", "measured"] < problem.infinite_risk(np.eye(3), 0.0)  # better than predicting zero


def test_a_single_run_tells_nothing(problem):
    table = experiments.random_starts(problem, 20, 0.04, 20, 1, 16, seed=0)
    for reads in ("x", "y"):
        assert math.isnan(experiments.reached(table, reads).low)
