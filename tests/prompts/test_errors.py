"""Errors from prompts: against the exact curves, in blocks, with a query a prompt, and for other measures."""

import numpy as np
import pytest
from statistics_checks import assert_mean

from lib.finite_prompt import output_error, score_gradient_error, value_gradient_error
from lib.prompts.errors import prompt_errors
from lib.tokens.families import Gaussian, Rademacher

D = 5


def head(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=D), 0.3 * rng.normal(size=(D, D)), rng.normal(size=(3, D))


@pytest.mark.parametrize("length", [1, 7, 60])
def test_prompt_errors_have_the_exact_means(length):
    query, U, V = head()
    gamma = np.diag([1.0, 0.5, 2.0, 0.0, 1.0])
    errors = prompt_errors(Gaussian(np.ones(D), gamma), query, U, V, length, 20_000, np.random.default_rng(1))
    assert_mean(errors[:, 0], output_error(gamma, query, U, V, length))
    assert_mean(errors[:, 1], value_gradient_error(gamma, query, U, length))
    assert_mean(errors[:, 2], score_gradient_error(gamma, query, U, V, length))


def test_blocks_do_not_matter_to_the_law(monkeypatch):
    """With blocks of 64 numbers prompts are read in many pieces: the same mean, one piece after another."""
    query, U, V = head()
    monkeypatch.setattr("lib.prompts.errors.CACHE", 64)
    errors = prompt_errors(Gaussian(np.zeros(D), np.eye(D)), query, U, V, 50, 2000, np.random.default_rng(2))
    assert_mean(errors[:, 0], output_error(np.eye(D), query, U, V, 50))


def test_one_query_for_each_prompt():
    _, U, V = head()
    queries = np.random.default_rng(3).normal(size=(8_000, D))
    errors = prompt_errors(Gaussian(np.zeros(D), np.eye(D)), queries, U, V, 20, len(queries), np.random.default_rng(4))
    assert_mean(errors[:, 0] - output_error(np.eye(D), queries, U, V, 20), 0.0)


def test_other_tokens_have_another_error():
    query, U, V = head()
    errors = prompt_errors(Rademacher(D), query, 3 * U, V, 50, 20_000, np.random.default_rng(5))
    with pytest.raises(AssertionError):
        assert_mean(errors[:, 0], output_error(np.eye(D), query, 3 * U, V, 50))
