"""What is measured on prompts against the exact theory, with few prompts: each check is off once in 10^6 seeds."""

import numpy as np
import pytest
from scipy import stats
from statistics_checks import FALSE_ALARM, assert_mean

from lib.experiments.prompt_length import causal, drift, on_prompts, over_queries
from lib.experiments.settings import generic_head
from lib.finite_prompt import tolerance_reached
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


def test_the_guarantee_of_markov_holds_and_is_needed():
    found = on_prompts.beyond_tolerance(
        setting=["isotropic", 4], s=1.0, tolerance=0.3, confidence=0.9, number_budget=3 * 10**6, seed=0
    )
    sure, mean = found.table.itertuples()
    assert sure.length > 8 * mean.length
    far = round(found.measured.value * sure.prompts)
    assert stats.binom.sf(far - 1, sure.prompts, 0.1) > FALSE_ALARM  # a share of 0.1 or less is possible
    assert stats.binom.sf(round(found.control.value * mean.prompts) - 1, mean.prompts, 0.1) < FALSE_ALARM
    assert (found.measured.low, found.control.high) == (sure.low, mean.high)


def test_a_query_a_prompt_at_the_length_needed_over_queries():
    found = over_queries.at_needed_length(couplings=[0.05, 0.1], dim=3, tolerance=0.4, number_budget=10**6, seed=1)
    assert found.table["coupling"].to_list() == [0.05, 0.1]
    assert_curve(found.measured, 1.0)
    assert np.all(found.control.mean > 1.2)
    assert found.pooled().measured.value == pytest.approx(found.table["measured"].mean())


def test_growing_prompts_move_as_the_theory_says():
    seconds = [40, 64, 256]
    found = drift.growing_prompts(
        setting=["toeplitz(0.5)", 2], s=0.8, first=32, seconds=seconds, number_budget=10**6, seed=4
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


def test_a_prefix_is_a_prompt_for_a_random_head_only():
    dim, coupling = 6, 0.2
    found = causal.prefixes(dim=dim, coupling=coupling, length=64, sequences=1500, seed=2)
    random, own = (rows for _, rows in found.table.groupby("head"))
    assert [*random["head"], *own["head"]] == 6 * ["random head"] + 6 * ["self-attending head"]  # 64 begins no octave
    for curve, rows in ((found.measured, random), (found.control, own)):  # judged from position 4 on
        assert curve.mean == pytest.approx((rows["measured"] / rows["exact"]).to_numpy()[2:])
    own_token = 0.1  # its effect in a random head: small, not none
    assert np.all(np.abs(found.measured.mean - 1) < own_token + LIMIT * found.measured.resampled.std(0))
    assert np.all(found.measured.resampled.std(0) < 0.03)
    assert np.any(np.abs(found.control.mean - 1) > LIMIT * found.control.resampled.std(0))
    # A single token: as a prompt E|V x - V U z|^2 with a query of its own, in truth E|V x - V U x|^2.
    random_U, V = stream(2, "causal").standard_normal((2, dim, dim)) / np.sqrt(dim)
    for rows, direction in ((random, random_U / np.linalg.norm(random_U, 2)), (own, np.eye(dim))):
        VU = np.sqrt(coupling) * V @ direction
        assert rows["exact"].iloc[0] == pytest.approx((V**2).sum() + (VU**2).sum(), rel=1e-4)
        assert_table(rows.head(1).assign(exact=((V - VU) ** 2).sum()))
