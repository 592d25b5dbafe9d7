"""What is measured on prompts against the exact theory, with few prompts: each check is off once in 10^6 seeds."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import softmax
from statistics_checks import FALSE_ALARM, assert_mean

from lib.experiments.prompt_length import causal, drift, on_prompts, over_queries, own_token, tail
from lib.experiments.settings import generic_head
from lib.finite_prompt import output_error, tolerance_reached
from lib.finite_prompt.needed_length import deviation, length_for, query_numbers
from lib.prompts.attention import softmax_attention
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix

LIMIT = stats.norm.isf(FALSE_ALARM / 2)  # standard errors of a log, which is nearly normal for a hundred prompts


def assert_curve(curve, exact) -> None:
    """Each point of a positive curve is at most so many standard errors from the exact one."""
    errors = np.log(curve.resampled).std(0)
    assert np.all(np.abs(np.log(curve.mean / exact)) < LIMIT * errors)
    assert np.all(errors < 0.15), "so few prompts tell nothing"


def assert_table(table) -> None:
    """The same from a table: measured, and the ends of an interval that is at least one of 95 %."""
    errors = np.log(table["high"] / table["low"]) / (2 * stats.norm.isf(0.025))
    assert np.all(np.abs(np.log(table["measured"] / table["exact"])) < LIMIT * errors)
    assert np.all(errors < 0.15), "so few prompts tell nothing"


def test_one_query_and_a_given_length():
    found = on_prompts.at_length(
        length=40, dimensions=[1, 5], deviations=[0.2, 1.0], number_budget=10**6, most=500, seed=3
    )
    assert found.table["dimension"].to_list() == ["D = 1"] * 2 + ["D = 5"] * 2
    assert found.table["exact"][3] == pytest.approx(deviation(1.0, 5, 40))
    assert_table(found.table)


def test_squared_deviations_of_a_generic_head_have_the_exact_mean():
    gamma = covariance_matrix("toeplitz(0.5)", 3)
    head = generic_head(3, gamma, 0.8, 2)
    rng = np.random.default_rng(2)
    squares = on_prompts.squared_deviations(gamma, head, length=25, number_budget=10**7, most=2000, rng=rng)
    assert len(squares) == 2000
    assert_mean(squares, tolerance_reached(gamma, None, *head[1:], 25, query=head[0]) ** 2)


def test_prompts_of_the_needed_length_reach_the_tolerance_and_half_of_them_do_not():
    settings = [["isotropic", 2], ["toeplitz(0.9)", 4]]
    found = on_prompts.at_needed_length(
        settings=settings, deviations=[0.7], tolerances=[0.4, 0.25], number_budget=10**6, most=400, seed=5
    )
    table = found.table
    for row in table.itertuples():
        assert row.length == length_for(row.s, table["output dimension"][row.Index], row.tolerance)
    assert_curve(found.measured, 1.0)
    halved = [
        deviation(s, D, length // 2) / tolerance
        for s, D, length, tolerance in table[["s", "output dimension", "length", "tolerance"]].to_numpy()
    ]
    assert_curve(found.control, halved)
    assert np.all(np.array(halved) > 1.3)
    assert table["measured"].to_numpy() == pytest.approx(found.measured.mean * table["tolerance"])
    head = generic_head(2, np.eye(2), 0.7, 5)
    assert table["output dimension"][0] == pytest.approx(query_numbers(np.eye(2), *head)[1])


def test_the_confidence_of_long_prompts():
    """The share beyond the tolerance is 1 - confidence but for sampling, far from Markov's."""
    found = on_prompts.at_confidence(
        settings=[["isotropic", 4]], s=0.5, tolerance=0.3, confidence=0.9, number_budget=10**7, most=4000, seed=0
    )
    (row,) = found.table.itertuples()
    assert 1 < row.times < 0.5 * row.markov and row.markov == pytest.approx(10)
    far = round(0.1 * found.measured.value * row.prompts)
    assert stats.binomtest(far, row.prompts, 0.1).pvalue > FALSE_ALARM
    assert found.measured.cases == row.prompts and found.control.high < 0.1 < found.measured.low


def test_a_query_a_prompt_at_the_length_needed_over_queries():
    found = over_queries.at_needed_length(couplings=[0.05, 0.1], dim=3, tolerance=0.4, number_budget=10**6, seed=1)
    assert found.table["coupling"].to_list() == [0.05, 0.1]
    assert_curve(found.measured, 1.0)
    assert np.all(found.control.mean > 1.2)
    assert found.pooled().measured.value == pytest.approx(found.table["measured"].mean())


def test_growing_prompts_move_as_the_theory_says():
    seconds = [40, 64, 256]
    found = drift.growing_prompts(
        settings=[["toeplitz(0.5)", 2]], s=0.8, first=32, seconds=seconds, number_budget=10**6, seed=4
    )
    nested, fresh = found["nested"].table, found["fresh"].table
    for kind in ("nested", "fresh"):
        assert_curve(found[kind].measured, 1.0)
        other = found["fresh" if kind == "nested" else "nested"].table["exact"].to_numpy()
        assert found[kind].control.mean * other == pytest.approx(found[kind].table["measured"].to_numpy())
    assert np.all(np.diff(nested["exact"]) > 0) and np.all(np.diff(fresh["exact"]) < 0)
    assert np.all(nested["exact"] < fresh["exact"]) and np.all(fresh["exact"] < fresh["bound"])
    # Quiet and long: the square is proportional to 1/L1 -+ 1/L2, so that the ratio is known.
    assert nested["exact"][1] / fresh["exact"][1] == pytest.approx(np.sqrt((1 - 0.5) / (1 + 0.5)), rel=0.05)


def test_outputs_of_growing_prompts_are_those_of_softmax_attention():
    """In blocks or whole: the same draws, hence the same outputs."""
    gamma, (query, U, V) = np.eye(3), generic_head(3, np.eye(3), 1.0, 0)
    outputs = drift._outputs(
        gamma, (query, U, V), lengths=[5, 9], number_budget=9 * 3 * 30, rng=np.random.default_rng(6)
    )
    rng = np.random.default_rng(6)
    first = rng.standard_normal((30, 5, 3))
    whole = np.concatenate([first, rng.standard_normal((30, 4, 3))], axis=1)
    np.testing.assert_allclose(outputs[:, 0], softmax_attention(first, query, U, V), rtol=1e-12)
    np.testing.assert_allclose(outputs[:, 1], softmax_attention(whole, query, U, V), rtol=1e-12)


def test_causal_attention_is_attention_on_each_prefix():
    rng = np.random.default_rng(8)
    x, U, V = rng.standard_normal((6, 3)), rng.standard_normal((3, 3)), rng.standard_normal((2, 3))
    expected = [
        ((softmax_attention(x[: i + 1], x[i], U, V) - V @ U @ x[i]) ** 2).sum()  # white tokens: the limit is V U x
        for i in range(6)
    ]
    np.testing.assert_allclose(causal.causal_errors(x, U, V), expected, rtol=1e-12)


def test_a_prefix_knows_its_own_query():
    dim, coupling = 6, 0.2
    found = causal.prefixes(dim=dim, coupling=coupling, length=64, sequences=1500, seed=2)
    random, own = (rows for _, rows in found.table.groupby("head"))
    assert [*random["head"], *own["head"]] == 6 * ["random head"] + 6 * ["self-attending head"]  # 64 begins no octave
    judged = pd.concat([random[2:], own[2:]])  # from position 4 on
    assert found.measured.mean == pytest.approx((judged["measured"] / judged["exact"]).to_numpy())
    assert found.control.mean == pytest.approx((judged["measured"] / judged["prompt"]).to_numpy())
    assert_curve(found.measured, 1.0)
    assert np.all(found.measured.resampled.std(0) < 0.03)
    assert np.any(np.abs(found.control.mean - 1) > LIMIT * found.control.resampled.std(0))
    pooled = causal.pooled(found)
    assert pooled.measured.low < 1.01 and pooled.measured.high > 0.99 and abs(pooled.control.value - 1) > 0.2
    # A single token: as a prompt E|V x - V U z|^2 with a query of its own, in truth E|V x - V U x|^2.
    random_U, V = stream(2, "causal").standard_normal((2, dim, dim)) / np.sqrt(dim)
    for rows, direction in ((random, random_U / np.linalg.norm(random_U, 2)), (own, np.eye(dim))):
        VU = np.sqrt(coupling) * V @ direction
        assert rows["prompt"].iloc[0] == pytest.approx((V**2).sum() + (VU**2).sum(), rel=1e-4)
        assert rows["exact"].iloc[0] == pytest.approx(((V - VU) ** 2).sum(), rel=0.01)


def test_the_error_beside_the_own_token_is_that_of_many_prompts():
    """Given the query, 40,000 prompts of two and of six tokens; off once in 10^6 seeds."""
    rng = np.random.default_rng(5)
    z, U, V = rng.standard_normal(3), 0.6 * rng.standard_normal((3, 3)), rng.standard_normal((2, 3))
    exact = own_token.error_at(z, U, V, np.array([1.0, 2.0, 6.0]))
    assert exact[0] == pytest.approx(((V @ (z - U @ z)) ** 2).sum())
    alone = own_token.error_at(z, U, V, np.array([6.0]), own=False)
    assert alone[0] == pytest.approx(output_error(np.eye(3), z, U, V, 6), rel=1e-9)
    for k, length in ((1, 2), (2, 6)):
        prompts = rng.standard_normal((40_000, length, 3))
        prompts[:, 0] = z
        errors = ((softmax_attention(prompts, z, U, V) - V @ U @ z) ** 2).sum(1)
        assert_mean(errors, exact[k])


def test_the_average_over_own_tokens():
    """The scaled identity by the norm alone, and by quasi-Monte Carlo like any other head."""
    V = np.random.default_rng(1).standard_normal((3, 3))
    lengths = np.array([1.0, 4.0, 30.0])
    by_norm = own_token.mean_error_of_scaled_identity(0.35, V, lengths)
    assert by_norm == pytest.approx(own_token.mean_error(0.35 * np.eye(3), V, lengths), rel=0.02)
    assert by_norm[0] == pytest.approx(0.65**2 * (V**2).sum())


def test_the_average_over_own_tokens_of_a_random_head():
    """A million prompts of four tokens: their mean is known to 5e-4, and the average over queries to 1e-3."""
    rng, dim = np.random.default_rng(0), 8
    U, V = rng.standard_normal((2, dim, dim)) / np.sqrt(dim)
    U *= np.sqrt(0.12) / np.linalg.norm(U, 2)
    errors = []
    for _ in range(20):
        x = rng.standard_normal((50_000, 4, dim))
        z = x[:, -1]
        p = softmax(np.einsum("nld,nd->nl", x, z @ U.T), axis=1)
        errors.append((((np.einsum("nl,nld->nd", p, x) - z @ U.T) @ V.T) ** 2).sum(1).mean())
    assert own_token.mean_error(U, V, np.array([4.0]))[0] == pytest.approx(np.mean(errors), rel=3e-3)


def test_the_law_of_the_deviation_of_long_prompts():
    assert tail.share_beyond([1.0], 3.0) == pytest.approx(stats.chi2(1).sf(3.0), rel=1e-9)
    assert tail.share_beyond([0.25] * 4, 1.7) == pytest.approx(stats.chi2(4).sf(6.8), rel=1e-9)
    assert tail.share_beyond([0.6, 0.4], 1e-6) == pytest.approx(1, abs=1e-5)
    assert tail.share_beyond([0.9, 0.1], tail.quantile([0.9, 0.1], 0.1)) == pytest.approx(0.1)
    gamma, z = np.diag([2.0, 1.0, 1.0]), np.array([1.0, 0, 0])
    weights = tail.deviation_weights(gamma, z, 0.5 * np.eye(3), np.eye(3))
    assert sorted(weights) == pytest.approx([0.2, 0.2, 0.6])  # 1, 1 and 2 + 1, over their sum
