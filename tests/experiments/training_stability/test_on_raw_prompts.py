"""Notebook 03 on raw prompts, at tiny size: stochastic training, parametrizations, random starts, other tokens."""

import math

import numpy as np
import pytest
from scipy.special import softmax

from lib.experiments import stochastic_training
from lib.experiments.training_stability import other_tokens, parametrizations, random_starts
from lib.regression.task import InContextRegression


@pytest.fixture(scope="module")
def problem():
    return InContextRegression(np.diag([1.5, 1.0, 0.5]), 0.3)


@pytest.fixture(scope="module")
def uneven():
    return InContextRegression(np.diag([2.0, 1.0, 0.5]), 0.3)


def test_sgd_follows_its_own_flow_and_not_the_other(problem):
    found = stochastic_training.sgd_checkpoints(
        problem=problem, lengths=[20], alpha=0.8, step_size=0.01, n_steps=150, seeds=3, batch=64, seed=0
    )
    table = found.table
    assert set(table["attention"]) == {"softmax", "linear"}
    assert np.abs(table["measured / exact"] - 1).max() < 0.1
    assert (table["low"] <= table["measured"]).all() and (table["measured"] <= table["high"]).all()
    softmax_only = table[table["attention"] == "softmax"]
    assert abs(found.control.value - 1) == pytest.approx(np.abs(softmax_only["other"] - 1).max())
    assert abs(found["both"].control.value - 1) == pytest.approx(np.abs(table["other"] - 1).max())
    wide = found["both"].measured.estimate((0.5, 2.0))
    assert (wide.low, wide.high) == (table["low / exact"].min(), table["high / exact"].max())


def test_parametrizations_follow_flows_of_their_own(problem):
    found = parametrizations.parametrizations(
        problem=problem, length=20, alpha=0.8, step_size=0.005, n_steps=120, seeds=2, batch=64, seed=0
    )
    assert list(found.table["start"].unique()) == ["(U, V)", "(Q, K, V, O)"]
    assert np.abs(found.table["measured / exact"] - 1).max() < 0.2
    assert (found.table["measured"] > 0.95 * found.table["best"]).all()  # nothing beats the best head
    linear = found.table["measured"] / found.table["linear"]
    assert abs(found.control.value - 1) == pytest.approx(np.abs(linear - 1).max())


def test_other_tokens_train_too(problem):
    found = other_tokens.other_tokens(
        problem=problem,
        lengths=[10, 40],
        alpha=0.8,
        step_size=0.02,
        n_steps=60,
        seeds=2,
        batch=32,
        held_out=500,
        seed=0,
    )
    assert set(found.table["tokens"]) == {"Gaussian", "Rademacher", "uniform"}
    assert found.measured.value < found.control.value


def test_the_exchanged_head_leaves_the_other_directions(uneven):
    # For long prompts the risk tends to that of the directions which it does not learn, from above.
    risks = [random_starts.exchanged_risk(problem=uneven, length=length, seed=0) for length in (50, 1000, 10**6)]
    assert risks == sorted(risks, reverse=True)
    assert risks[-1] == pytest.approx((1.0 + 0.5) / 2, rel=0.02)
    assert risks[0] > 0.9


def test_the_exchanged_risk_is_that_of_raw_prompts(uneven):
    # One head of the family, with the size that is best at 30 tokens within a factor: no prompt beats the optimum.
    tokens, query, target = uneven.sample(20_000, 30, np.random.default_rng(1))
    best = random_starts.exchanged_risk(problem=uneven, length=30, seed=0)
    losses = {}
    for nu in (0.1, 0.2, 0.3, 0.45):
        p = softmax(nu * tokens[..., -1] * query[:, :1], axis=1)
        m = np.vecdot(p, tokens[..., 0])
        xi = (m @ target) / (m @ m)
        losses[nu] = ((xi * m - target) ** 2 / 2).mean()
    assert min(losses.values()) == pytest.approx(best, rel=0.05)  # its standard error is about 1.5 %
    assert losses[0.1] > 1.05 * best


def test_runs_are_told_apart_and_nothing_beats_the_best_head(uneven):
    found = random_starts.random_starts(
        problem=uneven, length=20, step_size=0.04, n_steps=300, starts=8, batch=64, seed=0
    )
    assert found.table.groupby("reads")["runs"].first().sum() == 8
    last = found.table.groupby("reads").last()
    assert (last["measured"] > 0.95 * last["best"]).all()
    assert last.loc["y", "measured"] < uneven.infinite_risk(np.eye(3), 0.0)  # better than predicting zero
    assert found["y"].measured.value == pytest.approx(last.loc["y", "measured"] / last.loc["y", "exact"])
    assert found["y"].control.value > found["y"].measured.value


def test_a_single_run_tells_nothing(uneven):
    found = random_starts.random_starts(
        problem=uneven, length=20, step_size=0.04, n_steps=20, starts=1, batch=16, seed=0
    )
    for reads in ("x", "y"):
        assert math.isnan(found[reads].measured.low)
