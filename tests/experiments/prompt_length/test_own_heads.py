"""Heads from a file: what the theory says of each, and the rounding errors of low precision."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lib.experiments.prompt_length import heads, rounding
from lib.finite_prompt import output_error, prompt_length_for, tolerance_reached
from lib.finite_prompt.head_file import example_heads, heads_from_arrays

D, HEADS = 7, 2
RNG = np.random.default_rng(0)
GAMMA = np.diag(np.arange(1.0, D + 1))
W_Q, W_K, W_V = 0.2 * RNG.normal(size=(3, HEADS, 3, D))


@pytest.fixture
def layer():
    """Two heads of head dimension 3 on anisotropic tokens, with a query of interest."""
    return heads_from_arrays(Gamma=GAMMA, W_Q=W_Q, W_K=W_K, W_V=W_V, head_dim=3, query=np.ones(D))


def test_answers_of_each_head_and_query(layer):
    table = heads.answers(heads=layer, tolerances=[0.3, 0.1], context=512).table
    assert list(table["queries"]) == ["all", "yours"] * HEADS
    head = GAMMA, GAMMA, layer.U[1], layer.V[1]
    assert table["L for 10%"][2] == prompt_length_for(*head, 0.1)
    assert table["L for 30%"][3] == prompt_length_for(*head, 0.3, query=np.ones(D))
    assert table["at context"][2] == tolerance_reached(*head, 512)
    assert table["at context"][3] == tolerance_reached(*head, 512, query=np.ones(D))
    assert table["s"][3] == pytest.approx(np.sqrt((layer.U[1].sum(1) ** 2) @ np.diag(GAMMA)))  # z = (1, ..., 1)
    assert table["when it doubles"].notna().to_list() == [True, False] * HEADS


def test_a_context_that_doubles_moves_the_output_by_less_than_both_errors_and_more_than_their_difference():
    quiet = example_heads(1, dim=4, gains=(0.5,))
    table = heads.answers(heads=quiet, tolerances=[0.1], context=2048).table
    head = quiet.covariance, quiet.query_covariance, quiet.U[0], quiet.V[0]
    now, later = table["at context"][0], tolerance_reached(*head, 4096)
    assert now - later < table["when it doubles"][0] < now + later
    assert table["when it doubles"][0] == pytest.approx(np.sqrt(now**2 - later**2), rel=0.02)  # C / L1 - C / L2


def test_rounding_is_far_below_the_deviation_and_ordered():
    layer = example_heads(0, dim=8, gains=(1.0,))
    table = rounding.rounding(heads=layer, lengths=[32, 256], n_queries=8, seed=0).table
    errors = table.set_index(["length", "precision"])["rounding"]
    for length in (32, 256):
        assert 1e-9 < errors[length, "float32"] < 1e-4 < errors[length, "bfloat16"] < 0.05
        assert 1e4 < errors[length, "bfloat16"] / errors[length, "float32"] < 1e6  # 2^16: 24 bits against 8
    reached = tolerance_reached(layer.covariance, layer.query_covariance, layer.U[0], layer.V[0], [32, 256])
    assert table.drop_duplicates("length")["deviation"].to_list() == pytest.approx(reached)
    assert np.all(table["rounding"] < table["deviation"])


def test_float64_rounds_nothing():
    precisions, layer = {"same": torch.float64}, example_heads(0, dim=8, gains=(1.0,))
    draw = rounding.tokens_and_queries(layer, length=16, n_queries=4, seed=0)
    errors = rounding.rounding_errors(layer, 0, *draw, precisions=precisions)
    assert np.all(errors["same"] == 0)


def test_rounding_at_the_needed_length_and_inputs_that_are_too_coarse():
    layer = example_heads(3, dim=8, gains=(0.7, 1.0))
    found = rounding.rounding_at_needed_length(heads=layer, tolerance=0.2, n_queries=16, seed=0)
    expected = [
        prompt_length_for(layer.covariance, layer.query_covariance, U, V, 0.2)
        for U, V in zip(layer.U, layer.V, strict=True)
    ]
    assert found.table["length"].to_list() == expected
    assert np.all(found.table["float8"] > 4 * found.table["measured"])  # 2^4 in precision
    assert found.measured.mean == pytest.approx((found.table["measured"] / found.table["predicted"]).to_numpy())
    assert np.all(found.control.mean > 4) and np.all(found.near_miss.mean > found.measured.mean)


def test_the_predicted_rounding_of_a_simple_head():
    """U = lambda I and V = I on white tokens: r^2 (1 + 1), of the query and of the output."""
    head = heads_from_arrays(Gamma=np.eye(4), U=0.3 * np.eye(4), V=np.eye(4))
    found = rounding.predicted_rounding(head, 0, unit=2**-8)
    r = 2**-8 / (2 * np.sqrt(np.log(4)))
    assert (found.query, found.output) == pytest.approx((r, r))
    assert found.total == pytest.approx(np.sqrt(2) * r)


def test_the_figure_shows_every_head_one_by_one_or_as_a_map():
    gains = (0.5, 1.0, 2.0, 0.7, 0.8, 0.9, 1.1)
    for count in (1, 5, 6, 7):
        layer = example_heads(0, dim=4, gains=gains[:count])
        table = rounding.rounding(heads=layer, lengths=[8, 32], n_queries=4, seed=0).table
        axes = rounding.rounding_figure(table).axes
        if count <= 6:
            assert [axis.get_title() for axis in axes] == [f"head {k}" for k in range(count)]
            assert all(len(axis.lines) == 3 for axis in axes)  # the finite prompt and two precisions
        else:
            assert [label.get_text() for label in axes[0].get_yticklabels()] == [f"head {k}" for k in range(count)]
            exact = table.drop_duplicates(["head", "length"])["deviation"].min()
            assert f"{exact:.2g}" in {text.get_text() for text in axes[0].texts}
        plt.close("all")


def test_every_head_sees_the_same_prompts_and_long_ones_are_left_out(monkeypatch):
    layer = example_heads(0, dim=4, gains=(1.0, 1.0))
    twice = heads_from_arrays(Gamma=layer.covariance, U=layer.U[[0, 0]], V=layer.V[[0, 0]])
    table = rounding.rounding(heads=twice, lengths=[8, 32], n_queries=4, seed=0).table
    first, second = (table[table["head"] == f"head {k}"].drop(columns="head").reset_index(drop=True) for k in range(2))
    assert first.equals(second)
    monkeypatch.setattr(rounding, "NUMBERS_DRAWN", 4 * 31)
    assert set(rounding.rounding(heads=twice, lengths=[8, 32], n_queries=4, seed=0).table["length"]) == {8}


def test_heads_on_prompts_of_their_covariance(layer):
    found = heads.on_prompts(heads=layer, length=16, n_queries=4, number_budget=10**6, most=2000, seed=0)
    assert found.measured.estimate((0.9, 1.1)).low > 0.9 and found.measured.estimate((0.9, 1.1)).high < 1.1
    assert found.near_miss.estimate((0.9, 1.1)).low > 1.1 and found.control.estimate((0.9, 1.1)).low > 2


def test_loud_heads_are_shown_and_not_judged(layer):
    loud = heads_from_arrays(Gamma=GAMMA, U=np.stack([layer.U[0], 1e3 * layer.U[0]]), V=layer.V)
    draw = {"length": 16, "n_queries": 4, "number_budget": 10**4, "most": 100, "seed": 0}
    found = heads.on_prompts(heads=loud, **draw)
    assert len(found.table) == 2 and len(found.measured.mean) == 1 and heads.quietest(loud) < heads.LOUDEST
    alone = heads_from_arrays(Gamma=GAMMA, U=1e3 * layer.U[0], V=layer.V[0])
    assert heads.quietest(alone) > heads.LOUDEST and len(heads.on_prompts(heads=alone, **draw).measured.mean) == 1


def _layer_of_tokens(seed=0, dim=6):
    """One head with tokens that are far from Gaussian, and a bias of its queries."""
    rng = np.random.default_rng(seed)
    W_Q, W_K, W_V = rng.normal(size=(3, 2, 3, dim)) / np.sqrt(dim)
    tokens = rng.standard_t(5, size=(400, dim)) + 1
    return heads_from_arrays(tokens=tokens, W_Q=W_Q, W_K=W_K, W_V=W_V, head_dim=3, b_Q=rng.normal(size=(2, 3)))


def test_prompts_of_the_users_tokens_obey_the_law_of_these_tokens():
    layer = _layer_of_tokens()
    found = heads.on_prompts(heads=layer, length=32, n_queries=4, number_budget=2_000_000, most=8000, seed=1)
    found = found.measured.estimate((0.9, 1.1))
    assert 0.9 < found.low <= found.high < 1.1
    # The formula for Gaussian tokens would not do.
    gaussian = replace(layer, tokens=None)
    wrong, right = (heads._exact(x, 0, 4, [32], 1)[2] for x in (gaussian, layer))
    assert right.mean() > 1.2 * wrong.mean()


def test_every_answer_knows_the_bias_of_the_queries():
    layer = _layer_of_tokens()
    table = heads.answers(heads=layer, tolerances=[0.2], context=256).table
    for k in range(2):
        queries = layer.tokens + layer.shift(k)
        errors = output_error(layer.covariance, queries, layer.U[k], layer.V[k], 256).mean()
        linear = ((queries @ layer.U[k].T @ layer.covariance @ layer.V[k].T) ** 2).sum(1).mean()
        assert table["at context"][k] == pytest.approx(np.sqrt(errors / linear))
        assert rounding.linear_part(layer, k) == pytest.approx(linear)
    assert 0 < table["when it doubles"].max() < 1
