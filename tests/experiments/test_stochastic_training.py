"""The experiments of notebook 03 on raw prompts, at tiny size."""

import numpy as np
import pytest

from lib.experiments.training_stability import on_prompts as experiments
from lib.regression.task import InContextRegression


@pytest.fixture(scope="module")
def problem():
    return InContextRegression(np.diag([1.5, 1.0, 0.5]), 0.3)


def test_sgd_follows_its_own_flow_and_not_the_other(problem):
    table = experiments.sgd_checkpoints(problem, [20], 0.8, 0.01, 150, 3, 64, seed=0)
    assert set(table["attention"]) == {"softmax", "linear"}
    assert np.abs(table["measured / exact"] - 1).max() < 0.1
    assert np.abs(table["other"] - 1).max() > 0.15
    assert (table["low"] <= table["measured"]).all() and (table["measured"] <= table["high"]).all()


def test_parametrizations_follow_flows_of_their_own(problem):
    table = experiments.parametrizations(problem, 20, 0.8, 0.005, 120, 2, 64, seed=0)
    assert list(table["start"].unique()) == ["(U, V)", "(Q, K, V, O)"]
    assert np.abs(table["measured / exact"] - 1).max() < 0.2
    assert (table["measured"] > 0.95 * table["best"]).all()  # nothing beats the best head


def test_other_tokens_train_too(problem):
    table = experiments.other_tokens(problem, [10, 40], 0.8, 0.02, 60, 2, 32, 500, seed=0)
    assert set(table["tokens"]) == {"Gaussian", "Rademacher", "uniform"}
    trained, untrained = experiments.gain_from_length(table, ["Rademacher", "uniform"])
    assert max(trained) < min(untrained)
