"""Notebook 07, which prompt length to train at."""

import numpy as np
import pytest

from lib.experiments.optimization_transfer import lengths
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
ISOTROPIC = InContextRegression(np.eye(3), 0.4, 1.5)

GENERAL = BlockHead(np.array([[0.3, 0.1, 0.0], [-0.1, 0.4, 0.2], [0.1, 0.0, 0.2]]), 1.2)


def test_recalibration_finds_the_best_b():
    head = lengths.recalibrated(PROBLEM, GENERAL.A, 40)
    assert PROBLEM.risk_and_gradient("softmax", *head, 40)[1].b == pytest.approx(0, abs=1e-9)
    best = best_softmax(PROBLEM, 40)
    assert lengths.recalibrated(PROBLEM, best.A, 40).b == pytest.approx(best.b, rel=1e-6)


def test_transfer_costs_nothing_at_the_length_of_training():
    problems = {"isotropic": ISOTROPIC, "toeplitz": PROBLEM}
    found = lengths.transfer(problems=problems, trained_lengths=[20, 50], used_lengths=[50, 400])
    table = found.table.set_index(["covariance", "trained at", "used at"])
    assert table.loc[("toeplitz", "L₁ = 50", 50), "penalty"] == pytest.approx(1, abs=1e-9)
    assert np.all(table["recalibrated"] >= 1 - 1e-9)
    assert np.all(table["recalibrated"] <= table["penalty"] + 1e-9)
    assert found["limit head"].measured.value == table["penalty"].xs(("limit", 400), level=[1, 2]).max()
    assert found["limit head"].measured.value < found["limit head"].control.value


def test_the_reach_grows_like_the_square_of_the_training_length():
    problem = InContextRegression(np.eye(5), np.sqrt(0.1))
    found = lengths.reach(problem=problem, trained_lengths=[10, 20, 1e4, 1e5], penalty=2.0)
    assert found.measured.value == pytest.approx(2, abs=0.03)
    assert found.control.value == found.table["slope"][0]
    assert found.table["reach"].is_monotonic_increasing
