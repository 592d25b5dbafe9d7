"""Notebook 07, the linear gradient as control variate on raw prompts."""

import numpy as np
import pytest

from lib.experiments.optimization_transfer import variance
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
    predicted = found.table[found.table["coefficient"] == "1"].set_index(["head", "length", "control"])["predicted"]
    ratio = gain.loc[("trained", 100, "linear"), "1"] / predicted.loc[("trained", 100, "linear")]
    assert found["trained"].measured.value == pytest.approx(ratio)
    assert found["trained"].measured.value == pytest.approx(1, abs=0.3) and found["trained"].control.value > 10
    assert found["affine"].measured.value == pytest.approx(1, abs=0.3)


def test_without_long_prompts_nothing_is_known():
    heads = {"start": PROBLEM.balanced_init(0.3), "trained": None}
    found = variance.gains(problem=PROBLEM, heads=heads, lengths=[5], number_budget=100_000, seed=0)
    for name in ("start", "growth", "trained", "affine"):
        assert np.isnan(found[name].measured.estimate((0, 1)).value)
