import numpy as np
import pytest

from lib.experiments.attention_kernels import swaps
from lib.kernels import Linformer
from lib.regression.best_heads import best_linear
from lib.regression.head import BlockHead
from lib.regression.task import InContextRegression

PROBLEM = InContextRegression(np.eye(3), 0.3)


def test_linear_attention_gains_and_softmax_loses_by_the_swap():
    found = swaps.exact(problem=PROBLEM, lengths=[32, 100_000])
    risks = found.table
    assert (risks["linear, swapped"] < risks["softmax, trained"]).all()
    assert (risks["linear, retrained"] <= risks["linear, swapped"]).all()
    assert (risks["softmax, swapped back"] > risks["softmax, trained"]).all()
    assert found.measured.value == pytest.approx(1, abs=2e-3)
    assert found.near_miss.value > 1.2
    assert found.control.value < 0.5


def test_swapped_kernels_have_their_exact_risks():
    learned = swaps.learn_projections(problem=PROBLEM, length=32, rows=8, steps=300, seed=0)
    small = {"length": 32, "n_prompts": 8000, "features": 32}
    found = swaps.on_prompts(problem=PROBLEM, learned=learned["Gaussian"], seed=0, **small)
    assert 0.9 < found.pooled().measured.value < 1.1
    assert found.pooled().control.value < 0.9
    assert (found.near_miss.mean[1:] > 1.05 * found.measured.mean[1:]).all()
    risks = found.table.set_index("kernel")
    swapped = found.measured.columns()
    half = (swapped["high"] - swapped["low"])[0] / 2 * risks.loc["softmax", "predicted"]
    assert risks.loc["softmax", "swapped ±"] == pytest.approx(half, rel=0.5), "joint bands are a little wider"
    assert risks.loc["linear", "swapped"] < risks.loc["softmax", "swapped"]
    assert risks.loc["moment", "retrained"] < risks.loc["moment", "swapped"]

    prices = swaps.learned_risks(problem=PROBLEM, length=32, trained=learned, n_prompts=8000, seed=0)
    assert prices.measured.mean == pytest.approx(1, abs=0.12)
    assert prices.near_miss.mean[0] > 1.1
    table = prices.table.set_index("start")
    assert table["keys"].idxmin() == "keys / 8"
    assert (table[["keys", "projection"]] > 0).all(axis=None)


def test_centered_rows_are_softmax_on_p_tokens_less_the_mean_label():
    small = {"length": 24, "rows": 6, "n_prompts": 20_000, "seed": 0}
    found = swaps.centered_on_prompts(problem=PROBLEM, scales=[1.5, 0.05], **small)
    assert found.measured.mean == pytest.approx(1, abs=0.06)
    assert found.near_miss.mean[0] > 1.05 > found.near_miss.mean[1]
    assert found.control.mean.max() < 0.8


def test_small_keys_are_linear_attention_on_one_token_less():
    """For any isotropic covariance: the risk of centered rows, and that of the matrices of such a kernel."""
    for variance in (1.0, 2.5):
        problem = InContextRegression(variance * np.eye(3), 0.3)
        best = best_linear(problem, 7)
        floor = float(problem.linear_risk(*best, 7))
        kernel = Linformer.centered(20, 8, 0.3, seed=1)
        head = BlockHead(8 / 7 * best.A, best.b)  # p rows share what p - 1 tokens have
        assert swaps.linear_limit_risk(problem, head, kernel) == pytest.approx(floor, rel=1e-12)
        A = 1e-3 * np.eye(3)
        at = swaps.centered_risk(problem, BlockHead(A, swaps.best_centered_b(problem, A, 8)), 8)
        assert at == pytest.approx(floor, rel=1e-5)


@pytest.mark.parametrize("variance", [1.0, 2.0])
def test_the_limit_of_small_keys_on_prompts(variance):
    """Any projections, keys a thousandth and values as much larger: 40,000 prompts, within five standard errors."""
    problem, rng = InContextRegression(variance * np.eye(3), 0.3), np.random.default_rng(2)
    E, F = rng.standard_normal((2, 5, 12)) / 3
    kernel = Linformer(E / 1000, 1000 * (F - F.mean(0)) + 2 * F.mean(0))
    head = BlockHead(0.3 * np.eye(3), 0.8)
    prompts = problem.sample(40_000, 12, rng)
    queries = prompts.query @ head.A.T
    outputs = kernel(prompts.tokens[..., :-1], queries[:, None], prompts.tokens[..., -1:])[:, 0, 0]
    losses = (head.b * outputs - prompts.target) ** 2 / 2
    predicted = swaps.linear_limit_risk(problem, head, kernel)
    assert abs(losses.mean() - predicted) < 5 * losses.std() / 200
    without = swaps.linear_limit_risk(problem, head, Linformer(E, F - F.mean(0)))
    assert abs(losses.mean() - without) > 5 * losses.std() / 200
