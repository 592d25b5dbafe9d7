"""Notebook 07, the linear gradient as control variate on raw prompts."""

import numpy as np
import pytest

from lib.experiments.optimization_transfer import on_prompts, variance
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

PROBLEM = InContextRegression(covariance_matrix("toeplitz(0.5)", 3), 0.4, 1.5)
ISOTROPIC = InContextRegression(np.eye(3), 0.4, 1.5)


def test_the_mean_of_the_infinite_prompt_is_seen_to_be_wrong():
    found = variance.means_along(
        problem=PROBLEM, other=ISOTROPIC, head=PROBLEM.balanced_init(0.5), length=5, n_prompts=20_000, seed=0
    )
    assert found.measured.low < 1 < found.measured.high
    rows = found.table.set_index("used")
    for wrong in ("infinite prompt", "other covariance"):
        assert not rows.loc[wrong, "low"] < 1 < rows.loc[wrong, "high"]
    assert found.control.value == rows.loc["infinite prompt", "mean"]


def test_measured_gains_meet_their_prediction_at_the_start_and_the_best_coefficient_is_best():
    heads = {"start": PROBLEM.balanced_init(0.3), "trained": None}
    found = variance.gains(problem=PROBLEM, heads=heads, lengths=[10, 50, 100], number_budget=2_000_000, seed=0)
    gain = found.table.pivot(index=["head", "length", "control"], columns="coefficient", values="gain")
    assert found["start"].measured.value == pytest.approx(1, abs=0.2)
    assert (gain["best"] >= gain[["1", "1/2"]].max(axis=1)).all()
    assert gain.loc[("start", 50, "linear"), "1/2"] < 4.1  # (1 - 1/2)^-2
    assert found["short"].measured.mean[0] == gain.loc[("trained", 10, "linear"), "1"]
    np.testing.assert_allclose(found["trained"].control.mean, gain.xs(("start", "linear"), level=[0, 2])["1"][1:])
    assert len(found["affine"].measured.mean) == 1


def test_without_long_prompts_nothing_is_known():
    heads = {"start": PROBLEM.balanced_init(0.3), "trained": None}
    found = variance.gains(problem=PROBLEM, heads=heads, lengths=[5], number_budget=100_000, seed=0)
    for name in ("start", "growth", "trained", "affine"):
        assert np.isnan(found[name].measured.estimate((0, 1)).value)


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
