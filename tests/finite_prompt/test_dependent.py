"""Markov and AR(1) prompts: enumeration, the independent case as a limit, prompts, long ones by powers, bad input."""

import itertools

import numpy as np
import pytest
from scipy.special import softmax
from statistics_checks import assert_mean

from lib.finite_prompt import output_error
from lib.finite_prompt.dependent import (
    ar1_output_error,
    bigram_transition,
    long_run_error,
    markov_long_run_error,
    markov_output_error,
    stationary_law,
)
from lib.finite_prompt.empirical import tokens_output_error

EYE = np.eye(3)


def chain(n: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    states, P = rng.standard_normal((n, 2)) * 1.5, rng.dirichlet(np.ones(n), n)
    return states, P, np.ones(2), rng.standard_normal((2, 2)), rng.standard_normal((3, 2))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("length", [1, 2, 3, 8])
def test_every_prompt_of_a_small_chain(n, length):
    states, P, query, U, V = chain(n)
    law, target, error = stationary_law(P), np.array([1.0, -0.5, 2.0]), 0.0
    for prompt in map(list, itertools.product(range(n), repeat=length)):
        chance = law[prompt[0]] * np.prod(P[prompt[:-1], prompt[1:]])
        output = softmax(states[prompt] @ U @ query) @ states[prompt] @ V.T
        error += chance * ((output - target) ** 2).sum()
    assert markov_output_error(states, P, query, U, V, length, target=target) == pytest.approx(error, rel=1e-12)


def test_equal_rows_are_independent_tokens_also_by_powers():
    states, P, query, U, V = chain(5)
    P, lengths = np.tile(P[0], (5, 1)), [1, 7, 1000, 10**5, 10**6]
    independent = tokens_output_error(states, query, U, V, lengths, weights=P[0])
    np.testing.assert_allclose(markov_output_error(states, P, query, U, V, lengths), independent, rtol=1e-9)


def test_powers_and_steps_agree(monkeypatch):
    arguments = (*chain(4), 40)
    stepped = markov_output_error(*arguments)
    monkeypatch.setattr("lib.finite_prompt.dependent.STEPS_A_PRODUCT", 0)
    assert markov_output_error(*arguments) == pytest.approx(stepped, rel=1e-12)
    stepped = ar1_output_error(EYE, 0.5, [0.8, 0, 0], EYE, EYE, 12)
    monkeypatch.undo()
    assert ar1_output_error(EYE, 0.5, [0.8, 0, 0], EYE, EYE, 12) == pytest.approx(stepped, rel=1e-10)


def test_a_sticky_chain_makes_a_prompt_shorter_and_an_alternating_one_longer():
    states, _, query, U, V = chain(2)
    errors = [
        markov_output_error(states, [[stay, 1 - stay], [1 - stay, stay]], query, U, V, 1000) for stay in (0.9, 0.5, 0.1)
    ]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


@pytest.mark.parametrize("s", [0.3, 2.0, 4.0])
def test_without_correlation_the_gaussian_theory(s):
    query, lengths = np.array([s, 0, 0]), [1, 20] if s > 3 else [1, 20, 200]
    expected = output_error(EYE, query, EYE, EYE, lengths)
    np.testing.assert_allclose(ar1_output_error(EYE, 0.0, query, EYE, EYE, lengths), expected, rtol=1e-10)


@pytest.mark.parametrize(("s", "r", "length"), [(0.8, 0.6, 20), (1.2, 0.9, 30), (0.8, -0.6, 20)])
def test_correlated_gaussian_prompts(s, r, length):
    """Three checks at five standard errors: a false alarm of 2e-6."""
    rng = np.random.default_rng(11)
    x = np.empty((8000, length, 3))
    x[:, 0] = rng.standard_normal((8000, 3))
    for i in range(1, length):
        x[:, i] = r * x[:, i - 1] + np.sqrt(1 - r**2) * rng.standard_normal((8000, 3))
    outputs = np.vecmat(softmax(s * x[:, :, 0], axis=1), x)
    query = np.array([s, 0, 0])
    assert_mean(((outputs - query) ** 2).sum(1), float(ar1_output_error(EYE, r, query, EYE, EYE, length)))


def test_long_correlated_prompts_reach_the_sum_over_lags():
    """L E|T_L - T|^2 -> sum_k e^{s^2 r_k} (r_k tr + r_k^2 |a|^2), r_k = r^|k|."""
    s, r = 0.5, 0.6
    rk = r ** np.abs(np.arange(-200, 201))
    limit = (np.exp(s**2 * rk) * (3 * rk + s**2 * rk**2)).sum()
    found = 1e5 * ar1_output_error(EYE, r, [s, 0, 0], EYE, EYE, 10**5)
    assert found == pytest.approx(limit, rel=2e-4)


def test_the_stationary_law_is_kept_by_the_transition_and_must_be_unique():
    P = chain(4)[1]
    law = stationary_law(P)
    np.testing.assert_allclose(law @ P, law, rtol=1e-12)
    transient = stationary_law([[0.5, 0.5, 0.0], [0.3, 0.7, 0.0], [0.2, 0.2, 0.6]])
    assert transient[2] == 0 and transient.sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="more than one stationary law"):
        stationary_law(np.eye(2))


def test_bigrams_come_back_from_a_long_sequence():
    """5000 draws: each entry within 0.06, four standard errors and more."""
    rng, P = np.random.default_rng(2), chain(3)[1]
    sequence = [0]
    for _ in range(5000):
        sequence.append(rng.choice(3, p=P[sequence[-1]]))
    estimated = bigram_transition(sequence, 3)
    np.testing.assert_allclose(estimated.sum(1), 1)
    np.testing.assert_allclose(estimated, P, atol=0.06)
    assert np.all(bigram_transition([0, 1, 0], 4) > 0), "also for what was never seen"


ONES, FAIR, PLANE = np.ones((2, 2)), [[0.5, 0.5], [0.5, 0.5]], ([1, 1], np.eye(2), np.eye(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: markov_output_error(ONES, np.eye(3), *PLANE, 3), "transition: expected"),
        (lambda: markov_output_error(ONES, [[0.5, 0.4], [0.5, 0.5]], *PLANE, 3), "sum 1"),
        (lambda: markov_output_error(ONES, FAIR, [1], *PLANE[1:], 3), "need query"),
        (lambda: markov_output_error(ONES, FAIR, *PLANE, 1e9), "1,000,000"),
        (lambda: ar1_output_error(EYE, 1.0, [1, 0, 0], EYE, EYE, 3), "strictly between -1 and 1, received 1"),
        (lambda: bigram_transition([0, 1], 2, smoothing=0), "smoothing must be positive"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("correlation", [-0.5, 0.0, 0.7])
def test_long_gaussian_prompts_reach_their_long_run_error(correlation):
    gamma, query, U = np.diag([2.0, 1.0, 0.5]), np.array([0.5, -0.3, 0.4]), EYE
    lags = correlation ** np.arange(10**5)
    found = ar1_output_error(gamma, correlation, query, U, EYE, 10**5)
    assert found == pytest.approx(long_run_error(gamma, lags, query, U, EYE), rel=1e-3)


def test_a_slow_memory_falls_by_its_own_power():
    errors = [long_run_error(EYE, (1.0 + np.arange(n)) ** -0.4, 0.1 * np.ones(3), EYE, EYE) for n in (10**5, 10**6)]
    assert np.log10(errors[0] / errors[1]) == pytest.approx(0.4, abs=0.01)


def test_long_markov_prompts_reach_their_long_run_variance():
    states, P, query, U, V = chain(6)
    found = 10**6 * markov_output_error(states, P, query, 0.3 * U, V, 10**6)
    assert found == pytest.approx(markov_long_run_error(states, P, query, 0.3 * U, V), rel=1e-4)
    alike = np.tile(P[0], (6, 1))
    independent = 10**6 * tokens_output_error(states, query, 0.3 * U, V, 10**6, weights=P[0])
    assert markov_long_run_error(states, alike, query, 0.3 * U, V) == pytest.approx(independent, rel=1e-4)
