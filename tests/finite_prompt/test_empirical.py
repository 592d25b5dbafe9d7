"""Independent draws from any list of tokens: enumeration, prompts, the Gaussian theory as a special case, odd lists."""

import itertools

import numpy as np
import pytest
from scipy.special import softmax
from statistics_checks import assert_mean

from lib.finite_prompt import softmax_functionals
from lib.finite_prompt.empirical import tokens_error, tokens_output_error

RNG = np.random.default_rng(3)
TOKENS, WEIGHTS = RNG.standard_normal((3, 2)) * 2, np.array([0.2, 0.5, 0.3])
QUERY, U, V = np.array([1.0, -0.5]), RNG.standard_normal((2, 2)), RNG.standard_normal((3, 2))
EYE = np.eye(2)


def enumerated(length: int, target) -> tuple[np.ndarray, float, float]:
    """Mean output, squared error and inverse participation over all prompts of three tokens."""
    mean, error, inverse = np.zeros(3), 0.0, 0.0
    for prompt in itertools.product(range(3), repeat=length):
        chance = WEIGHTS[list(prompt)].prod()
        p = softmax(TOKENS[list(prompt)] @ U @ QUERY)
        output = p @ TOKENS[list(prompt)] @ V.T
        mean += chance * output
        error += chance * ((output - target) ** 2).sum()
        inverse += chance * (p**2).sum()
    return mean, error, inverse


@pytest.mark.parametrize("length", [1, 2, 4, 7])
@pytest.mark.parametrize("target", [None, np.array([0.3, -1.0, 2.0])])
def test_every_prompt_of_three_tokens(length, target):
    found = tokens_error(TOKENS, QUERY, U, V, length, weights=WEIGHTS, target=target)
    mean, error, inverse = enumerated(length, found.target)
    np.testing.assert_allclose(found.mean[0], mean, rtol=1e-12)
    assert found.squared_error[0] == pytest.approx(error, rel=1e-12)
    assert found.inverse_participation[0] == pytest.approx(inverse, rel=1e-12)


@pytest.mark.parametrize("s", [0.05, 0.7, 1.3, 3.0])
def test_gaussian_atoms_give_the_gaussian_theory(s):
    """The nodes of a quadrature as atoms: exact for the normal law far beyond what the integrals see."""
    g = np.arange(-9.6, 2 * s + 9.6, 0.2)
    lengths = np.array([1, 10, 1e3, 1e6, 1e12, 1e15])
    found = tokens_error(g[:, None], [1.0], [[s]], [[1.0]], lengths, weights=np.exp(-(g**2) / 2))
    exact = softmax_functionals(s, lengths)
    np.testing.assert_allclose(found.squared_error, exact.squared_error, rtol=1e-11)
    np.testing.assert_allclose(found.inverse_participation, exact.inverse_participation, rtol=1e-11)
    np.testing.assert_allclose(found.mean[:, 0], s * (1 - exact.inverse_participation), rtol=1e-11, atol=1e-14)


def test_heavy_tails_against_prompts():
    """Student atoms; five checks at five standard errors each: a false alarm of 3e-6."""
    rng = np.random.default_rng(7)
    tokens, weights = rng.standard_t(3, (300, 6)), rng.dirichlet(np.ones(300))
    query, head = rng.standard_normal(6), rng.standard_normal((6, 6)) / 3
    for length in (2, 5, 30, 100, 300):
        prompts = tokens[rng.choice(300, size=(200_000 // (10 * length), length), p=weights)]
        p = softmax(prompts @ (head @ query), axis=1)
        found = tokens_error(tokens, query, head, np.eye(6), length, weights=weights)
        outputs = np.vecmat(p, prompts)
        assert_mean(((outputs - found.limit) ** 2).sum(1), float(found.squared_error[0]))


def test_the_error_is_bias_and_fluctuation_from_any_target():
    for target in (None, np.ones(3)):
        found = tokens_error(TOKENS, QUERY, U, V, [2, 50], weights=WEIGHTS, target=target)
        np.testing.assert_allclose(found.fluctuation + ((found.mean - found.target) ** 2).sum(1), found.squared_error)
    at_limit = tokens_error(TOKENS, QUERY, U, V, [2, 50], weights=WEIGHTS)
    np.testing.assert_allclose(found.fluctuation, at_limit.fluctuation, rtol=1e-10)


def test_the_sharp_constant_is_that_of_the_tilted_measures():
    tilted, twice = (WEIGHTS * np.exp(n * TOKENS @ U @ QUERY) for n in (1, 2))
    limit = tilted @ TOKENS @ V.T / tilted.sum()
    constant = twice @ ((TOKENS @ V.T - limit) ** 2).sum(1) / tilted.sum() ** 2
    assert 1e12 * tokens_output_error(TOKENS, QUERY, U, V, 1e12, weights=WEIGHTS) == pytest.approx(constant, rel=1e-9)


def test_lists_without_variety():
    """One token, equal tokens, no scores, weights of zero: each has a closed form."""
    assert tokens_output_error([[1.0, 2.0]], QUERY, EYE, EYE, [1, 100]) == pytest.approx([0, 0], abs=1e-20)
    same = np.tile([1.0, 2.0], (5, 1))
    found = tokens_error(same, QUERY, EYE, EYE, [1, 4])
    assert found.squared_error == pytest.approx([0, 0], abs=1e-20)
    assert found.inverse_participation == pytest.approx([1, 1 / 4])
    quiet = tokens_error(TOKENS, QUERY, 0 * EYE, EYE, [1, 4, 1e9], weights=WEIGHTS)
    spread = WEIGHTS @ ((TOKENS - WEIGHTS @ TOKENS) ** 2).sum(1)
    np.testing.assert_allclose(quiet.squared_error, spread / np.array([1, 4, 1e9]), rtol=1e-12)
    padded = tokens_output_error(np.vstack([TOKENS, [[1e5, 1e5]]]), QUERY, U, V, 9, weights=[*WEIGHTS, 0.0])
    assert padded == pytest.approx(float(tokens_output_error(TOKENS, QUERY, U, V, 9, weights=WEIGHTS)), rel=1e-13)


def test_scores_of_a_thousand_are_decided_by_the_largest():
    """With scores this far apart a prompt reads out its loudest token: E|x_max - target|^2, by enumeration."""
    tokens, target = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), np.zeros(2)
    query, loud = np.array([1.0, 0.3]), 3000 * EYE
    found = tokens_error(tokens, query, loud, EYE, [1, 3], weights=WEIGHTS, target=target)
    first = 1 - (1 - WEIGHTS[0]) ** np.array([1, 3])
    np.testing.assert_allclose(found.squared_error, 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.mean[:, 0], first - WEIGHTS[2] ** np.array([1, 3]), rtol=1e-12)


def test_memory_is_bounded_and_blocks_do_not_change_the_answer(monkeypatch):
    whole = tokens_output_error(TOKENS, QUERY, U, V, [3, 1e6], weights=WEIGHTS)
    monkeypatch.setattr("lib.finite_prompt.empirical.MEMORY", 7)
    np.testing.assert_allclose(tokens_output_error(TOKENS, QUERY, U, V, [3, 1e6], weights=WEIGHTS), whole, rtol=1e-14)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.empty((0, 2))}, r"tokens: expected shape \(N, d\), not empty"),
        ({"query": [1.0]}, r"query does not fit 3 tokens of dimension 2: received shape \(1,\)"),
        ({"U": np.eye(3)}, "U does not fit"),
        ({"V": np.ones((2, 5))}, "V does not fit"),
        ({"length": 0}, "whole and between 1 and 1e"),
        ({"length": [2.5]}, "whole and between 1 and 1e"),
        ({"weights": [1, -1, 1]}, "none may be negative"),
        ({"weights": [0, 0, 0]}, "one must be positive"),
        ({"weights": [1, 1]}, "weights does not fit"),
        ({"target": [1.0]}, r"target: expected shape \(3,\), the rows of V, received \(1,\)"),
        ({"tokens": [[np.nan, 0.0]] * 3}, "tokens: their entries must be finite"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"tokens": TOKENS, "query": QUERY, "U": U, "V": V, "length": 3} | change
    with pytest.raises(ValueError, match=message):
        tokens_output_error(**arguments)
