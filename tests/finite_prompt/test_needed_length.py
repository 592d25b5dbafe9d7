"""The prompt length for a tolerance: closed forms, its inverse, the U shape, prompts, and what is refused."""

from math import inf

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.finite_prompt import (
    Average,
    coupling,
    mean_output_error,
    mean_sharp_constant,
    output_error,
    prompt_length_for,
    sample_outputs,
    tolerance_reached,
)
from lib.finite_prompt.needed_length import (
    _at_least,
    best_score_deviation,
    compressed,
    deviation,
    length_for,
    length_law,
    query_numbers,
)
from lib.finite_prompt.over_queries import list_output_error
from lib.finite_prompt.smallest_length import smallest_length
from lib.finite_prompt.weight_moments import softmax_functionals

D = 5
EYE = np.eye(D)


@pytest.fixture
def head():
    """A generic covariance, query covariance, U, V (3 x 5) and query, with a coupling of 0.2."""
    rng = np.random.default_rng(7)
    roots = rng.normal(size=(2, D, D))
    covariance, query_covariance = roots @ roots.mT / D
    U, V, z = rng.normal(size=(D, D)), rng.normal(size=(3, D)), rng.normal(size=D)
    return covariance, query_covariance, U * np.sqrt(0.2 / coupling(covariance, query_covariance, U)), V, z


# ---- one query: two numbers decide


def test_quiet_scores_one_token_and_the_law():
    # s -> 0: all weights 1/L, deviation^2 = D / (s^2 L).
    assert length_for(1e-4, 3.0, 0.1) == pytest.approx(3 / (1e-4 * 0.1) ** 2, rel=1e-7)
    # One token is enough once the tolerance is sqrt(1 + D / s^2), and not below.
    single = np.sqrt(1 + 4 / 0.49)
    assert deviation(0.7, 4.0, 1) == pytest.approx(single, rel=1e-12)
    assert length_for(0.7, 4.0, single * (1 + 1e-9)) == 1
    assert length_for(0.7, 4.0, single * (1 - 1e-9)) == 2
    # Small tolerances: e^{s^2} (D + s^2) / (s^2 tolerance^2).
    for s in (0.3, 1.0, 2.0):
        assert length_for(s, 7.0, 1e-5) == pytest.approx(length_law(s, 7.0, 1e-5), rel=1e-4)


def test_values_at_ten_percent_in_one_dimension():
    one = np.eye(1)
    found = [prompt_length_for(one, None, [[s]], one, 0.1, query=[1.0]) for s in (0.05, 0.7, 3.0)]
    assert found == [40201, 493, 31937]
    assert all(isinstance(length, int) for length in found)


def test_the_two_numbers_give_the_error_of_any_head(head):
    covariance, _, U, V, z = head
    s, dimension = query_numbers(covariance, z, U, V)
    reached = tolerance_reached(covariance, None, U, V, [1, 30, 1e6], query=z)
    np.testing.assert_allclose(reached, deviation(s, dimension, [1, 30, 1e6]), rtol=1e-12)
    linear = V @ covariance @ U @ z
    outputs = sample_outputs(covariance, z, U, V, 30, 40_000, np.random.default_rng(3))
    assert_mean(((outputs - linear) ** 2).sum(1) / (linear @ linear), reached[1] ** 2)
    # White tokens with U and V multiples of the identity: D = d.
    assert query_numbers(EYE, z, 0.4 * EYE, 2 * EYE)[1] == pytest.approx(D)


def test_the_needed_length_is_a_u_in_s_with_the_predicted_minimum():
    s = np.geomspace(0.05, 4, 30)
    for dimension in (1.0, 10.0):
        lengths = [length_for(x, dimension, 0.05) for x in s]
        assert (np.diff(np.sign(np.diff(lengths))) != 0).sum() == 1  # it turns once
        assert lengths[0] > 10 * min(lengths) < lengths[-1]
    fine = np.geomspace(0.7, 1.1, 100)
    for dimension in (1.0, 4.0, 100.0):
        best = fine[np.argmin([length_for(x, dimension, 1e-4) for x in fine])]
        assert best == pytest.approx(best_score_deviation(dimension), abs=0.006)
    assert best_score_deviation(1) ** 2 == pytest.approx((np.sqrt(5) - 1) / 2)
    assert best_score_deviation(1e9) == pytest.approx(1)


def test_moments_of_the_weights_fall_with_the_length():
    """What the search relies on, on a grid."""
    lengths = np.concatenate([np.arange(1, 100), np.round(np.geomspace(100, 1e15, 80))])
    w = softmax_functionals(np.linspace(0.0, 8, 33)[:, None], lengths)
    assert np.all(np.diff(w.inverse_participation, axis=1) < 0)
    assert np.all(np.diff(w.squared_error, axis=1) < 0)


# ---- the length and its inverse


@pytest.mark.parametrize("s", [0.05, 0.7, 2.0, 5.0])
@pytest.mark.parametrize("tolerance", [0.5, 0.1, 0.02])
def test_smallest_length_at_a_query_and_its_inverse(s, tolerance):
    one = np.eye(1)
    length = prompt_length_for(one, None, [[s]], one, tolerance, query=[1.0])
    reached = tolerance_reached(one, None, [[s]], one, [length, length - 1], query=[1.0])
    assert reached[0] <= tolerance * (1 + 1e-10)
    assert reached[1] > tolerance * (1 - 1e-10)
    # Asked for exactly what a length reaches, the answer is that length.
    if length < 1e9:
        assert prompt_length_for(one, None, [[s]], one, reached[0] * (1 + 1e-11), query=[1.0]) == length


def test_smallest_length_over_queries_and_its_inverse(head):
    covariance, query_covariance, U, V, _ = head
    tolerances = [0.5, 0.1, 0.02]
    lengths = prompt_length_for(covariance, query_covariance, U, V, tolerances)
    assert np.all(np.diff(lengths) > 0)
    assert lengths[1] == prompt_length_for(covariance, query_covariance, U, V, 0.1)
    reached = tolerance_reached(covariance, query_covariance, U, V, np.concatenate([lengths, lengths - 1]))
    assert np.all(reached[:3] <= tolerances) and np.all(reached[3:] > tolerances)
    error = mean_output_error(covariance, query_covariance, U, V, lengths[1], rtol=1e-8).value
    linear = np.trace(V @ covariance @ U @ query_covariance @ (V @ covariance @ U).T)
    assert reached[1] == pytest.approx(np.sqrt(error / linear), rel=1e-7)


def test_over_queries_the_length_follows_the_sharp_constant(head):
    covariance, query_covariance, U, V, _ = head
    linear = np.trace(V @ covariance @ U @ query_covariance @ (V @ covariance @ U).T)
    constant = mean_sharp_constant(covariance, query_covariance, U, V) / linear
    assert prompt_length_for(covariance, query_covariance, U, V, 1e-4) == pytest.approx(constant * 1e8, rel=1e-4)


def test_invariances(head):
    covariance, query_covariance, U, V, z = head
    Q, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))
    arguments = covariance, query_covariance, U, V
    rotated = Q @ covariance @ Q.T, Q @ query_covariance @ Q.T, Q @ U @ Q.T, 3.0 * V @ Q.T
    assert prompt_length_for(*arguments, 0.1) == prompt_length_for(*rotated, 0.1)
    assert prompt_length_for(*arguments, 0.1, query=z) == prompt_length_for(*rotated, 0.1, query=Q @ z)


def test_the_lower_bound_that_spares_the_average_is_one():
    for coupling_ in (0.5, 1.0, 2.0):
        U = np.sqrt(coupling_) * EYE
        reached = tolerance_reached(EYE, EYE, U, EYE, [1, 100, 1e8])
        assert np.all([_at_least(EYE, EYE, U, EYE, length) for length in (1, 100, 1e8)] <= reached**2)
        loud = deviation(np.geomspace(1, 40, 40), 1, np.array([1e3, 1e8, 1e15])[:, None])
        assert np.all(np.diff(loud, axis=1) > 0)
    assert _at_least(EYE, EYE, U, EYE, 1e8) > 0


def test_heads_of_low_rank_are_averaged_in_few_dimensions():
    rng = np.random.default_rng(5)
    d, e = 9, 2
    covariance, query_covariance = (x @ x.T / d for x in rng.normal(size=(2, d, 20)))
    W_Q, W_K = 0.3 * rng.normal(size=(2, e, d))
    arguments = covariance, query_covariance, W_K.T @ W_Q, rng.normal(size=(4, d))
    small = compressed(*arguments)
    assert small[2].shape == (e + 1, e + 1)
    lengths = [1, 10, 1e4]
    expected = mean_output_error(*arguments, lengths, rtol=1e-9).value
    np.testing.assert_allclose(mean_output_error(*small, lengths, rtol=1e-9).value, expected, rtol=1e-9)


def test_confidence_is_markov(head):
    covariance, query_covariance, U, V, z = head
    strict = prompt_length_for(covariance, None, U, V, 0.2, query=z, confidence=0.75)
    assert strict == prompt_length_for(covariance, None, U, V, 0.1, query=z)
    reached = tolerance_reached(covariance, query_covariance, U, V, 100)
    assert tolerance_reached(covariance, query_covariance, U, V, 100, confidence=0.75) == pytest.approx(2 * reached)


def test_out_of_reach_is_infinite():
    one = np.eye(1)
    assert prompt_length_for(one, None, [[9.0]], one, 0.1, query=[1.0]) == inf
    assert prompt_length_for(one, None, [[0.7]], one, 0.1, query=[1.0], largest=492) == inf
    assert prompt_length_for(one, None, [[0.7]], one, 0.1, query=[1.0], largest=493) == 493
    assert prompt_length_for(np.eye(64), np.eye(64), 4 * np.eye(64), np.eye(64), 0.1) == inf


@pytest.mark.parametrize("exact", [1, 2, 17, 1000, 123_456_789, 10**10 + 7])
def test_the_search_finds_any_whole_number_in_few_evaluations(exact):
    evaluated = []

    def error(length):
        evaluated.extend(length)
        return length**-0.7

    target = np.array([np.nextafter(exact**-0.7, 1), (3 * exact) ** -0.7 * (1 + 1e-15)])
    found = smallest_length(error, target)
    assert found[0] == exact
    assert found[1] == pytest.approx(3 * exact, rel=1e-11)
    assert len(evaluated) < 250


# ---- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covariance": np.ones((5, 4))}, r"covariance of shape \(5, 4\): expected a square matrix"),
        ({"covariance": -EYE}, r"covariance of shape \(5, 5\): not positive semidefinite, .* expected a symmetric"),
        ({"query_covariance": np.eye(4)}, r"query_covariance of shape \(4, 4\): expected shape \(5, 5\)"),
        ({"query_covariance": None}, "give query_covariance, to average over Gaussian queries, one query"),
        ({"U": np.ones((4, 5))}, r"U: expected shape \(5, 5\), .* received \(4, 5\)"),
        ({"V": np.ones((3, 4))}, r"V: expected shape \(k, 5\), .* received \(3, 4\)"),
        ({"query": np.ones(4)}, r"query: expected one vector of shape \(5,\), received \(4,\)"),
        ({"tolerance": 0.0}, "tolerance must be positive, received 0"),
        ({"tolerance": [0.1, np.nan]}, "tolerance must be positive"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1, received 1"),
        ({"U": 0 * EYE}, "the limit does not depend on the query"),
        ({"query": np.zeros(5)}, "the limit does not depend on the query"),
    ],
)
def test_bad_input_is_one_clear_line(head, change, message):
    arguments = dict(zip(("covariance", "query_covariance", "U", "V"), head[:4], strict=True)) | {"tolerance": 0.1}
    with pytest.raises(ValueError, match=message) as caught:
        prompt_length_for(**(arguments | change))
    assert "\n" not in str(caught.value)


def test_a_value_matrix_across_the_scores_has_no_relative_deviation():
    U, V = np.diag([1.0, 0, 0]), np.diag([0, 1.0, 1.0])
    with pytest.raises(ValueError, match="V Gamma U z is zero"):
        prompt_length_for(np.eye(3), np.eye(3), U, V, 0.1)


def test_the_lower_bound_of_loud_scores_is_sharp_within_a_factor(head):
    """At coupling 60 and 1000 tokens it is between a tenth and all of the deviation over queries."""
    _, _, U, V, _ = head
    U = U * np.sqrt(60 / coupling(EYE, EYE, U))
    exact = tolerance_reached(EYE, EYE, U, V, 1000) ** 2
    assert exact / 10 < _at_least(EYE, EYE, U, V, 1000) < exact


def test_over_queries_the_error_is_rounded_up(head, monkeypatch):
    """A length that is handed out is enough: the numerical error counts against it."""
    covariance, query_covariance, U, V, _ = head
    exact = tolerance_reached(covariance, query_covariance, U, V, 100)

    def uncertain(*arguments, **options):
        found = mean_output_error(*arguments, **options)
        return Average(found.value, 0.21 * found.value)

    monkeypatch.setattr("lib.finite_prompt.needed_length.mean_output_error", uncertain)
    assert tolerance_reached(covariance, query_covariance, U, V, 100) == pytest.approx(1.1 * exact, rel=1e-6)


def test_a_list_of_queries_is_averaged_one_by_one():
    rng = np.random.default_rng(5)
    gamma, U, V = np.diag(np.linspace(0.5, 2, 6)), rng.normal(size=(6, 6)) / 6, rng.normal(size=(3, 6))
    queries, lengths = rng.normal(size=(40, 6)) + 1, np.array([1.0, 10, 1e3, 1e7])
    errors = output_error(gamma, queries, U, V, lengths).mean(0)
    np.testing.assert_allclose(list_output_error(gamma, queries, U, V, lengths), errors, rtol=1e-11)
    linear = ((queries @ U.T @ gamma @ V.T) ** 2).sum(1).mean()
    reached = tolerance_reached(gamma, None, U, V, lengths, queries=queries)
    np.testing.assert_allclose(reached, np.sqrt(errors / linear), rtol=1e-11)
    needed = prompt_length_for(gamma, None, U, V, 0.1, queries=queries)
    after, before = (tolerance_reached(gamma, None, U, V, n, queries=queries) for n in (needed, needed - 1))
    assert after <= 0.1 < before
    np.testing.assert_allclose(list_output_error(gamma, 0 * queries, U, V, 10), np.trace(V @ gamma @ V.T) / 10)


def test_many_gaussian_queries_are_the_average_over_gaussian_queries():
    rng = np.random.default_rng(6)
    gamma, U, V = np.diag([2.0, 1.0]), np.eye(2) / 4, np.eye(2)
    queries = rng.standard_normal((200_000, 2))
    listed, exact = (f(gamma, q, U, V, [10, 1000]) for f, q in ((list_output_error, queries), (_averaged, np.eye(2))))
    np.testing.assert_allclose(listed, exact, rtol=0.01)  # the standard error is a tenth of that


def _averaged(*head):
    return mean_output_error(*head).value


def test_a_list_of_queries_that_does_not_fit():
    with pytest.raises(ValueError, match=r"queries: expected a list of shape \(n, 3\), received \(3,\)"):
        prompt_length_for(np.eye(3), None, np.eye(3), np.eye(3), 0.1, queries=np.ones(3))
    with pytest.raises(ValueError, match="the limit does not depend on the query"):
        prompt_length_for(np.eye(3), None, np.eye(3), np.eye(3), 0.1, queries=np.zeros((4, 3)))
