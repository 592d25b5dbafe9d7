"""Notebook 07, exact gradients: stable steps, the edge, and the race."""

import numpy as np
import pandas as pd
import pytest
from statistics_checks import worst

from lib.experiments.optimization_transfer import steps
from lib.regression import step_rules
from lib.regression.best_heads import best_softmax
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
ISOTROPIC = InContextRegression(np.eye(3), 0.4, 1.5)
CONSTANTS = steps.Constants(factor=1.5, change=0.3)


def test_a_stable_step_ends_flatter_than_the_edge_and_an_unstable_one_at_it():
    found = steps.edge_of_stability(problem=PROBLEM, length=200, fractions=[-0.5, 0.5], alpha=0.3, n_steps=300)
    assert worst(found.measured, 2) == pytest.approx(2, abs=0.1)
    assert worst(found.control, 2) < 1.8 and abs(worst(found.near_miss, 2) - 2) > abs(worst(found.measured, 2) - 2)
    assert found.table["risk / best"][0] == pytest.approx(1, abs=0.05)
    assert found.table["sharpness"].to_numpy() == pytest.approx(found.table["exact sharpness"], rel=0.35)


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
    problems, most = {"isotropic": ISOTROPIC, "toeplitz": PROBLEM}, 40
    found = steps.race(
        problems=problems, lengths=[20, 200], alpha=0.3, tolerance=0.1, most_steps=most, constants=CONSTANTS
    )
    wide = steps.by_method(found.table)
    tuned = wide[[name for name in wide if name.endswith(steps.TUNED) and name != "best tuned"]]
    assert (wide["best tuned"] == tuned.min(axis=1)).all()
    assert found["schedule"].control.value > found["schedule"].measured.value
    gain = (wide[steps.PRECONDITIONED] / wide["best tuned"]).xs(200, level="length")
    assert worst(found["gain"].measured, 0) == gain.max()
    assert (found.table["given up"] == (found.table["steps"] >= most)).all()
    tried = found.table.set_index("method")["tried"]
    assert tried["constant step" + steps.TUNED].min() == tried["Adam" + steps.TUNED].min() == 7  # the same search


def test_a_run_that_is_given_up_counts_as_many_steps_or_more():
    rows = [("a", 20, "mine", 10), ("a", 20, "theirs", 40), ("b", 20, "mine", 40), ("b", 20, "theirs", 40)]
    table = pd.DataFrame(rows, columns=["covariance", "length", "method", "steps"])
    capped = steps.typical_ratio(table, "mine", "theirs", 40)
    assert (capped.value, capped.low, capped.high, capped.cases) == (pytest.approx(0.25), 0, pytest.approx(0.25), 1)
    assert steps.typical_ratio(table, "theirs", "mine", 40).high == np.inf
    assert np.isnan(steps.typical_ratio(table[table["covariance"] == "b"], "mine", "theirs", 40).value)


def test_the_pilot_steps_up_while_the_total_falls():
    table, chosen = steps.pilot(problems={"toeplitz": PROBLEM}, lengths=[50], alpha=0.5, tolerance=0.1, most_steps=40)
    for name, rows in table.groupby("constant"):
        totals = rows.set_index("value")["total steps"]
        before = totals[totals.index <= getattr(chosen, name)]
        assert before.is_monotonic_decreasing and before.is_unique
        after = totals[totals.index > getattr(chosen, name)]
        assert after.empty or after.iloc[0] >= before.iloc[-1]


def test_a_smaller_start_costs_the_preconditioner_what_its_limit_says():
    found = steps.small_starts(
        problems={"toeplitz": PROBLEM}, lengths=[200], alpha=0.3, tolerance=0.1, most_steps=60, change=0.4
    )
    assert found.measured.value == pytest.approx(1, abs=0.1) and found.measured.cases == 1
    assert found.near_miss.value == pytest.approx(found.measured.value * 0.4 / np.log(1.4))


def test_near_the_best_head_the_preconditioned_step_tends_to_newtons():
    table = steps.preconditioner_range(
        problems={"toeplitz": PROBLEM}, lengths=[50, 10_000], alpha=0.3, tolerance=0.1, most_steps=60, change=0.4
    )
    off = (table[["lowest", "highest"]] - 1).abs().max(axis=1)
    assert off[1] < 0.2 * off[0] and not table["given up"].any()
