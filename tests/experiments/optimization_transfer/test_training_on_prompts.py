"""Notebook 07, training on raw prompts: what a control variate saves, and the stochastic race."""

from lib.experiments.optimization_transfer import on_prompts
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)


def test_training_with_a_control_variate_stays_closer_to_exact_descent():
    found = on_prompts.savings(
        problem=PROBLEM, length=60, alpha=0.3, step_size=0.05, n_steps=4, batch=8, seeds=20, early=3, seed=0
    )
    saved = found.table.set_index(["control", "step"])
    assert saved.loc[("linear", 3), "low"] > 3
    assert found["early"].measured == found["late"].control
    assert found["early"].measured.value == saved.loc[("linear", 3), "gain"]


def test_the_stochastic_race_is_paired_and_reproducible():
    arguments = dict(problem=PROBLEM, length=20, alpha=0.3, n_steps=3, batches=[4, 16], seeds=2, seed=5)
    first, second = (on_prompts.stochastic_race(adam_steps=[0.1, 0.1000001], **arguments) for _ in range(2))
    assert first.table.equals(second.table)
    by_method = first.table.groupby(["batch", "method"])["risk / best"].apply(list)
    assert len(by_method) == 2 * 2  # names of equal steps read alike
    assert first.measured.value == by_method[("batch 16", "preconditioned")][-1]
