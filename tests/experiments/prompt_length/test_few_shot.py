"""Numbers of examples: the smallest ones, exactly, and the risk that they reach on prompts."""

import numpy as np
import pytest
from scipy import stats
from statistics_checks import FALSE_ALARM

from lib.experiments.prompt_length.few_shot import (
    examples,
    examples_for,
    examples_when_trained,
    on_prompts,
    price,
    quieter,
)
from lib.prompts.estimate import NORMAL
from lib.regression.task import InContextRegression


def test_number_of_examples():
    problem = InContextRegression(np.eye(3), 0.3)
    head = problem.optimum()
    (found,) = examples_for(problem, quieter(head), [0.15])
    risks = problem.softmax_risk(*quieter(head), [found - 1, found]).value
    assert risks[1] <= 0.15 < risks[0]
    assert problem.infinite_risk(*quieter(head)) == pytest.approx(0, abs=1e-15)
    assert problem.coupling(quieter(head).A) == pytest.approx(problem.coupling(head.A) / 4)  # half the scores
    assert examples_when_trained(problem, 0.15) <= examples_for(problem, head, [0.15])[0]


def test_examples_of_each_predictor():
    table = examples(dimensions=[1, 3], risks=[0.4, 0.2], noise_std=0.3).table
    assert table["dimension"].to_list() == [1, 1, 3, 3]
    assert np.all(table["trained"] <= table[["optimum", "quieter"]].min(axis=1))  # the best head of its length
    names = ["optimum", "quieter", "trained", "linear"]
    assert np.all(table[names].to_numpy()[1::2] > table[names].to_numpy()[::2])  # half the risk costs more
    problem = InContextRegression(np.eye(3), 0.3)
    head, row = problem.optimum(), table.iloc[3]
    for risk, length in (
        (lambda L: problem.softmax_risk(*head, L).value, row["optimum"]),
        (lambda L: problem.linear_risk(*head, L), row["linear"]),
    ):
        assert risk(length) <= 0.2 * 3 / 2 < risk(length - 1)  # predicting zero has the risk d / 2


def test_a_smaller_risk_has_the_price_of_the_rate():
    """Above dimension four the paper's optimum has coupling below 1/2, and the examples are as 1 / risk."""
    found = price(dimensions=[2, 16], length=1e30)
    assert found.table["coupling"].to_list() == pytest.approx([2**-0.5, 0.25])
    assert found.table["predicted"].to_list() == pytest.approx([2 / ((1 + 4 * 2**0.5) ** 0.5 - 1), 1])
    assert found.table["growth"].to_list() == pytest.approx(found.table["predicted"].to_list(), rel=0.03)


def test_the_needed_examples_reach_the_risk_on_prompts():
    """Off once in 10^6 seeds, were the mean of so many losses normal."""
    found = on_prompts(dim=2, risks=[0.3, 0.2], noise_std=0.3, number_budget=3 * 10**6, seed=1)
    limit = stats.norm.isf(FALSE_ALARM / 2) / NORMAL  # half widths
    assert abs(found.measured.value - 1) < limit * found.measured.half_width < 0.2
    assert found.control.low > 1.2
    assert found.measured.value == pytest.approx(found.table["measured"].mean())
    problem = InContextRegression(np.eye(2), 0.3)
    assert found.table["length"].to_list() == examples_for(problem, quieter(problem.optimum()), [0.3, 0.2]).tolist()
