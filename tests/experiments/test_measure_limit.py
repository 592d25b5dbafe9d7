"""The experiments of notebook 01 at tiny size: what they must and must not find."""

import numpy as np
import pytest
from scipy.special import softmax
from statistics_checks import worst

from lib.experiments import measure_limit
from lib.experiments.settings import unit_measures
from lib.prompts.attention import softmax_attention


def test_every_formula_meets_its_quadrature():
    covariances = ["isotropic", "toeplitz(0.9)", "rank(3)"]
    found = measure_limit.formula_against_quadrature(dims=[1, 5], covariances=covariances, tilts=2, seed=0)
    assert worst(found.measured, 0) == found.table["error"].max() < 1e-12
    assert found.control.value == found.table["control"].min() > 1e-3
    assert worst(found.near_miss, 0) == found.table["affine"].max() > 1e-2
    of_dimension_one = found.table.loc[found.table["dimension"] == 1, "measure"]
    assert "Gaussian, rank(3)" not in set(of_dimension_one)  # it does not fit
    assert set(unit_measures(5)) - {"Gaussian"} < set(found.table["measure"])


def test_the_five_measures_share_their_first_two_moments():
    for name, measure in unit_measures(7).items():
        np.testing.assert_allclose(measure.mean, 0, atol=1e-14, err_msg=name)
        np.testing.assert_allclose(measure.covariance, np.eye(7), atol=1e-12, err_msg=name)


def test_only_the_gaussian_is_affine():
    found = measure_limit.departure_from_affine(dim=5, sizes=[0.1, 1, 10], directions=20, seed=0)
    largest = found.table.groupby("measure")["largest"].max()
    assert worst(found.measured, 0) == largest["Gaussian"] < 1e-13
    assert worst(found.near_miss, 0) == largest["mixture"]
    assert largest.drop("Gaussian").min() > 0.05
    assert found.control.value == largest["Rademacher"]


def on_a_line(lengths):
    setting = {"covariance": "toeplitz(0.5)", "dim": 4, "reach": 2.0, "seed": 0}
    return measure_limit.outputs_along_a_line(lengths=lengths, **setting).table


def test_nested_prompts_approach_the_limit():
    table = on_a_line([10, 50_000])
    assert set(table["curve"]) == {"one prompt", "exact mean"}
    gap = (table["along"] - table["limit"]).abs().groupby([table["curve"], table["prompt"]]).max()
    for curve in ("one prompt", "exact mean"):
        assert gap[curve, "L = 50,000"] < 0.2 < gap[curve, "L = 10"]
    np.testing.assert_array_equal(on_a_line([10])["along"], table.loc[table["prompt"] == "L = 10", "along"])


def test_shrinkage_is_the_inverse_participation():
    found = measure_limit.shrinkage(dim=3, deviations=[1.0, 2.0], lengths=[4, 16], number_budget=2_000_000, seed=0)
    assert 0.95 < found.pooled().measured.value < 1.05
    assert found.pooled().control.value > 2
    assert list(found.parts) == ["s = 1", "s = 2"]
    assert found.near_miss.mean[0] < 0.9 * found.measured.mean[0], "three tokens concentrate less than four"
    assert len(found.table) == len(found.measured.mean) == 4


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_depend_on_their_own_key_only(seed):
    short, long = (
        measure_limit.shrinkage(dim=3, deviations=[1.0], lengths=lengths, number_budget=200_000, seed=seed).table
        for lengths in ([4], [4, 8])
    )
    assert short["measured"][0] == long["measured"][0]


def test_weakly_coupled_layers_carry_their_first_error_on():
    setting = {"dim": 4, "depth": 2, "length": 1000, "replicates": 6, "seed": 0}
    found = measure_limit.layers(couplings=[0.1, 9.0], **setting)
    weak, strong = (found.table[found.table["coupling"] == name] for name in ("coupling 0.1", "coupling 9"))
    assert weak["error"].max() < 0.2 < strong["error"].max()
    assert weak["kurtosis"].sub(1).abs().max() < 0.1
    assert weak["rest"].mean() < 0.2 * weak["error"].mean()
    last = weak[weak["layer"] == 2]
    assert found.measured.value == pytest.approx(last["carried on"].mean()) == pytest.approx(1, abs=0.1)
    assert found.control.value == pytest.approx(last["fresh"].mean()) == pytest.approx(0, abs=0.6)
    assert found.near_miss.value == pytest.approx(last["stale"].mean())
    assert abs(last["stale"] - last["carried on"]).min() > 1e-3, "the maps of the near miss see the first covariance"


def test_a_layer_pushes_the_covariance_forward():
    """Without residual error: x -> B x for many tokens, and what attention sees may be another covariance."""
    rng = np.random.default_rng(3)
    gamma, (U, V) = np.diag([2.0, 1.0, 0.5]), rng.standard_normal((2, 3, 3))
    B = np.eye(3) + V @ gamma @ U
    np.testing.assert_allclose(measure_limit._pushed(gamma, U, V), B @ gamma @ B.T)
    np.testing.assert_allclose(measure_limit._pushed(np.eye(3), U, V, seen=gamma), B @ B.T)


def test_self_attention_in_blocks_is_plain_self_attention():
    x, U, V = (np.random.default_rng(0).normal(size=shape) for shape in ((30, 4), (4, 4), (4, 4)))
    plain = softmax(x @ U @ x.T, axis=1) @ x @ V.T
    for at_once in (1, 60, 10**6):
        found = softmax_attention(x, x, U.T, V, max_block_bytes=8 * at_once)
        np.testing.assert_allclose(found, plain, rtol=1e-10)
