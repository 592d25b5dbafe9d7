"""Notebook 07, which prompt length to train at."""

import numpy as np
import pytest
from statistics_checks import worst

from lib.experiments.optimization_transfer import leading_order, lengths
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.hessian import infinite_hessian, softmax_hessian
from lib.regression.step_rules import long_prompt
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
    assert table.loc[("toeplitz", 50, 50), lengths.AS_TRAINED] == pytest.approx(1, abs=1e-9)
    assert table.loc[("toeplitz", 50, 50), "law"] == 1
    law, off = leading_order.law_of(PROBLEM), (1 / 20 - 1 / 400) ** 2 * 400
    row = table.loc[("toeplitz", 20, 400)]
    assert (row["law"] - 1) / (row["law " + lengths.REPAIRED] - 1) == pytest.approx(law.penalty / law.repaired)
    assert row["law"] == pytest.approx(1 + law.penalty * off)
    assert np.all(table[lengths.REPAIRED] >= 1 - 1e-9)
    assert np.all(table[lengths.REPAIRED] <= table[lengths.AS_TRAINED] + 1e-9)


def test_the_reach_grows_like_the_square_of_the_training_length():
    problems = {"isotropic": InContextRegression(np.eye(5), np.sqrt(0.1)), "toeplitz": PROBLEM}
    found = lengths.reach(problems=problems, trained_lengths=[20, 1e5], penalty=2.0)
    assert worst(found[lengths.AS_TRAINED].measured) == pytest.approx(1, abs=0.01)
    assert worst(found[lengths.REPAIRED].measured) == pytest.approx(1, abs=0.01)
    assert set(found.table[found.table["head"] == lengths.REPAIRED]["covariance"]) == {"toeplitz"}
    assert worst(found[lengths.AS_TRAINED].near_miss) < 0.99


def test_a_new_b_repairs_isotropic_heads_for_good():
    found = lengths.isotropic_repair(problem=InContextRegression(np.eye(5), np.sqrt(0.1)), trained_lengths=[100])
    assert worst(found.measured) == pytest.approx(1, abs=0.01)
    assert worst(found.control) > 100 and abs(worst(found.near_miss) - 1) > 0.03


USUAL = InContextRegression(covariance_matrix("toeplitz(0.5)", 5), np.sqrt(0.1))  # of a coupling that is soon weak


def test_the_constants_of_the_laws_are_those_of_the_exact_risk():
    """Price and curvature at a long prompt, for a task of its own noise and size; q' <= q, and 0 for isotropic x."""
    law, limit = leading_order.law_of(USUAL), long_prompt(USUAL)
    length, best = 1e6, best_softmax(USUAL, 1e6)
    risks = [USUAL.risk_and_gradient("softmax", *head, length)[0] for head in (limit.head, best)]
    assert length * (risks[0] / risks[1] - 1) == pytest.approx(law.penalty, rel=0.01)
    assert 0 < law.repaired < law.penalty and leading_order.law_of(ISOTROPIC).repaired == 0
    whole, same = (
        np.linalg.eigvalsh(h)[-1] for h in (softmax_hessian(USUAL, best, length), infinite_hessian(USUAL, best))
    )
    assert length * (whole / same - 1) == pytest.approx(law.curvature, rel=0.01)


def test_both_laws_are_judged_at_the_longest_prompt_of_the_judged_tasks():
    problems = {"isotropic": ISOTROPIC, "toeplitz": USUAL}
    found = leading_order.near_trained_heads(problems=problems, judged=["toeplitz"], lengths=[50, 1e6])
    assert len(found.table) == 4
    for part in (found["stable"], found["price"]):
        assert len(part.measured.values) == 1
        assert worst(part.measured) == pytest.approx(1, abs=0.01) and worst(part.near_miss) > 1.01
        assert worst(part.control) > 1.5
