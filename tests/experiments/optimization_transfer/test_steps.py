"""Notebook 07, exact gradients: stable steps, the edge, and the race."""

import numpy as np
import pytest
from statistics_checks import worst

from lib.experiments.optimization_transfer import steps
from lib.regression import step_rules
from lib.regression.best_heads import best_softmax
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
ISOTROPIC = InContextRegression(np.eye(3), 0.4, 1.5)


def test_the_limit_hessian_at_the_same_head_tends_to_the_exact_one():
    found = steps.stable_steps(problems={"toeplitz": PROBLEM}, lengths=[100, 10_000])
    off = (found.table["same head"] / found.table["exact"] - 1).abs()
    assert off[1] < 0.2 * off[0]
    assert abs(worst(found.measured) - 1) == pytest.approx(off[0])
    assert abs(worst(found.control) - 1) > 2 * off[0]


def test_a_stable_step_ends_flatter_than_the_edge_and_an_unstable_one_at_it():
    found = steps.edge_of_stability(problem=PROBLEM, length=200, fractions=[-0.5, 0.5], alpha=0.3, n_steps=300)
    assert worst(found.measured, 2) == pytest.approx(2, abs=0.25)
    assert worst(found.control, 2) < 1.8
    assert found.table["risk / best"][0] == pytest.approx(1, abs=0.05)


def test_the_preconditioner_steps_into_the_valley_and_a_run_that_diverges_is_given_up():
    start, L = PROBLEM.balanced_init(0.3), 500
    target = 1.05 * PROBLEM.risk_and_gradient("softmax", *best_softmax(PROBLEM, L), L)[0]
    run = (start, target, 60)
    assert steps.steps_to(PROBLEM, L, step_rules.preconditioned(PROBLEM, L), *run) < 15
    wrong = InContextRegression(0.2 * np.eye(3), 0.4, 1.5)
    assert steps.steps_to(PROBLEM, L, step_rules.preconditioned(wrong, L), *run) == 60
    assert steps.steps_to(PROBLEM, L, step_rules.constant_step(50.0), *run) == 60
    assert steps.steps_to(PROBLEM, L, step_rules.constant_step(0.1), start, np.inf, 60) == 0


def test_the_race_counts_what_its_table_says():
    problems = {"isotropic": ISOTROPIC, "toeplitz": PROBLEM}
    found = steps.race(problems=problems, lengths=[20, 200], alpha=0.3, tolerance=0.1, most_steps=40)
    wide = steps.by_method(found.table)
    assert found["most"].measured.value == wide[steps.PRECONDITIONED].max() < 40
    assert found["most"].control.value == wide[steps.MISMATCHED].min()
    tuned = wide[[name for name in wide if name.endswith(steps.TUNED) and name != "best tuned"]]
    assert (wide["best tuned"] == tuned.min(axis=1)).all()
    assert found["schedule"].control.value > found["schedule"].measured.value
    assert (
        found["gain"].measured.value == (wide[steps.PRECONDITIONED] / wide["best tuned"]).xs(200, level="length").max()
    )
    assert np.isnan(steps.total_ratio(found.table, steps.PRECONDITIONED, "momentum" + steps.TUNED, 0))
