"""The exact experiments of notebook 03 at tiny size: what they must and must not find."""

import numpy as np
import pytest

from lib.experiments.training_stability import flows as experiments
from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian


@pytest.fixture(scope="module")
def problem():
    return experiments.regression("toeplitz(0.5)", 3, 0.3)


@pytest.fixture(scope="module")
def flows(problem):
    return experiments.flows(problem, [100, 10_000], alpha=0.5, horizon=20.0, points=40)


def test_longer_prompts_stay_closer(flows):
    table = experiments.largest_distances(experiments.distances(flows), [1.0, 20.0])
    sup = table.pivot(index="length", columns="T", values="sup")
    assert (sup.loc[10_000] < 0.5 * sup.loc[100]).all()
    assert (sup["T = 20"] >= sup["T = 1"]).all()


def test_the_envelope_holds_and_a_tenth_of_it_does_not(problem, flows):
    table = experiments.gronwall(problem, flows)
    assert (table["distance"] / table["envelope"]).max() < 1
    assert (table["distance"] / table["control"]).max() > 1


def test_hessian_of_the_infinite_risk_against_finite_differences(problem):
    rng = np.random.default_rng(0)
    point, step = rng.normal(size=10), 1e-5

    def gradient(x):
        found = problem.risk_and_gradient("infinite", x[:-1].reshape(3, 3), x[-1])[1]
        return np.append(found.A.ravel(), found.b)

    numeric = np.stack([(gradient(point + step * e) - gradient(point - step * e)) / (2 * step) for e in np.eye(10)])
    np.testing.assert_allclose(infinite_hessian(problem, BlockHead.from_flat(point)), numeric, atol=1e-7)


def test_gradients_along_training_are_the_exact_ones(problem, flows):
    _, ratio, untilted = experiments.gradients_along(problem, flows[None], [0.5, 20.0], [20, 60], 1_000_000, seed=0)
    assert 0.93 < ratio.pooled().value < 1.07
    assert untilted.pooled().value > 1.5


def test_flows_may_be_short(problem):
    flow = experiments.flows(problem, [20], alpha=0.5, horizon=1e-3, points=5)[20]
    assert flow.time[0] == 0 and flow.time[-1] == 1e-3 and (np.diff(flow.time) > 0).all()


def test_errors_at_the_end_are_those_of_the_optimum(problem):
    flow = experiments.flows(problem, [], alpha=0.5, horizon=300.0, points=20)[None]
    growth = experiments.growth_of_gradient_errors(problem, flow, 200, 5)
    assert growth["relative"].iloc[-1] == pytest.approx(1, abs=1e-3)


def test_risk_limits_fall_as_one_over_length():
    settings = experiments.standard_settings([2], 0.3)
    assert {"d = 2", "d = 5, condition 10", "d = 5, no noise", "d = 5, noise 1"} == set(settings)
    table = experiments.risk_limits({"d = 2": settings["d = 2"]}, [1e4, 1e5])
    assert table["slope"].iloc[0] == pytest.approx(1, abs=0.01)
    assert table["slope at U*"].iloc[0] < 0.75


def test_the_length_asked_for_reaches_the_risk(problem):
    limits = experiments.risk_limits({"one": problem}, [1e4, 1e5])
    length = experiments.lengths_for({"one": problem}, limits, [0.05]).loc["one", "ε = 0.05"]
    best = experiments.best_softmax(problem, length)
    assert float(problem.softmax_risk(*best, length).value) == pytest.approx(0.05, rel=0.01)


def test_the_limits_do_not_commute():
    table, limit, infinite = experiments.order_of_limits(5, 0.1**0.5, [1e5], [10, 400], 0.3)
    values = table.set_index("horizon")["value"]
    assert (limit, infinite) == (pytest.approx(0.61567, abs=2e-5), pytest.approx(np.sqrt(5)))
    np.testing.assert_allclose(values[["T = 10", "T = 400", "T = ∞"]], [2.10, 1.11, 0.617], atol=0.005)


def test_linear_attention_keeps_its_balance(problem):
    assert experiments.balance_of_linear(problem, [10, 100], 0.5, 20.0) < 1e-9


def test_the_best_head_is_far_from_the_infinite_optimum(problem):
    assert experiments.relative_distance_to_best(problem, 1e6) > 0.1
