"""The experiments of notebook 01 at tiny size: what they must and must not find."""

import numpy as np
import pytest

from lib.experiments import measure_limit
from lib.prompts.curve import join


def test_every_formula_meets_its_quadrature():
    table = measure_limit.formula_against_quadrature([1, 5], ["isotropic", "toeplitz(0.9)", "rank(3)"], 2, seed=0)
    assert table["error"].max() < 1e-12
    assert table["untilted"].min() > 1e-3
    assert "Gaussian, rank(3)" not in set(table.loc[table["dimension"] == 1, "measure"])  # it does not fit


def test_the_five_measures_share_their_first_two_moments():
    for name, measure in measure_limit.unit_measures(7).items():
        np.testing.assert_allclose(measure.mean, 0, atol=1e-14, err_msg=name)
        np.testing.assert_allclose(measure.covariance, np.eye(7), atol=1e-12, err_msg=name)


def test_only_the_gaussian_is_affine():
    largest = measure_limit.departure_from_affine(5, [0.1, 1, 10], 20, seed=0).groupby("measure")["largest"].max()
    assert largest["Gaussian"] < 1e-14
    assert largest.drop("Gaussian").min() > 0.05


def test_nested_prompts_approach_the_limit():
    table = measure_limit.outputs_along_a_line("toeplitz(0.5)", 4, [10, 50_000], 2.0, seed=0)
    gap = (table["output"] - table["limit"]).abs().groupby(table["length"]).max()
    assert gap[50_000] < 0.2 < gap[10]
    again = measure_limit.outputs_along_a_line("toeplitz(0.5)", 4, [10], 2.0, seed=0)
    np.testing.assert_array_equal(again["output"], table.loc[table["length"] == 10, "output"])


def test_shrinkage_is_the_participation():
    _, ratios, controls = measure_limit.shrinkage(3, [1.0, 2.0], [4, 16], 2_000_000, seed=0)
    assert 0.95 < join(ratios).pooled().value < 1.05
    assert join(controls).pooled().value > 2


def test_weakly_coupled_layers_follow_the_recursion():
    weak = measure_limit.layers(4, 0.1, 2, 1000, 2, seed=0)
    assert weak["error"].max() < 0.2
    assert weak["kurtosis"].sub(1).abs().max() < 0.1
    assert measure_limit.layers(4, 9.0, 2, 1000, 2, seed=0)["error"].max() > 0.3


def test_self_attention_in_blocks_is_plain_self_attention(monkeypatch):
    x, U = np.random.default_rng(0).normal(size=(2, 30, 30))[0][:, :4], np.eye(4)
    weights = np.exp(x @ x.T)
    plain = weights / weights.sum(1, keepdims=True) @ x
    monkeypatch.setattr(measure_limit, "BLOCK_NUMBERS", 60)
    np.testing.assert_allclose(measure_limit._self_attention(x, U, np.eye(4)), plain, rtol=1e-10)


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_depend_on_their_own_key_only(seed):
    short = measure_limit.shrinkage(3, [1.0], [4], 200_000, seed)[0]
    long = measure_limit.shrinkage(3, [1.0], [4, 8], 200_000, seed)[0]
    assert short["measured"][0] == long["measured"][0]
