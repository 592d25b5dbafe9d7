"""Notebook 07, training on raw prompts: what a control variate saves, and the stochastic race."""

import pytest

from lib.experiments.optimization_transfer import on_prompts
from lib.experiments.optimization_transfer.steps import PRECONDITIONED
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)


def test_what_a_control_variate_saves_follows_from_the_noise_along_the_path():
    """Off once in a thousand seeds: 40 runs, and the prediction's own prompts."""
    settings = {"problem": PROBLEM, "length": 60, "alpha": 0.3, "step_size": 0.05, "n_steps": 4}
    found = on_prompts.savings(**settings, batch=64, seeds=40, early=3, seed=0, node_prompts=4000)
    saved = found.table.set_index(["control", "step"])
    assert saved.loc[("linear", 3), "low"] > 3
    row = saved.loc[("linear", 3)]
    assert found["early"].measured.value == pytest.approx(row["gain"] / row["predicted"])
    assert found["early"].measured.value == pytest.approx(1, abs=0.5)
    assert saved["distance"].between(0.5, 2).all(), "plain runs are as far as predicted"


def test_the_first_step_of_the_expected_distance_is_the_variance_of_the_gradient():
    found = on_prompts.expected_deviations(PROBLEM, 60, 0.3, 0.05, 3, 2000, seed=1)
    for arm in on_prompts.ARMS:
        assert found.squares[arm][0] == 0
        assert found.squares[arm][1] == pytest.approx(0.05**2 * found.noise[arm][0])


def test_the_stochastic_race_is_paired_and_reproducible():
    arguments = dict(problem=PROBLEM, length=20, alpha=0.3, n_steps=3, batches=[4, 16], seeds=2, seed=5, change=0.3)
    first, second = (on_prompts.stochastic_race(**arguments) for _ in range(2))
    assert first.table.equals(second.table)
    by_method = first.table.groupby(["batch", "method"])["risk / best"].apply(list)
    assert len(by_method) == 2 * 4  # three tuned kinds, and the preconditioner
    assert first.measured.value == by_method[("batch 16", PRECONDITIONED)][-1]
    rivals = [
        ends[-1] for (batch, method), ends in by_method.items() if batch == "batch 16" and method != PRECONDITIONED
    ]
    assert first.control.value == min(rivals)
    assert first.measured.half_width > 1e-6, "two runs on prompts of their own differ"
