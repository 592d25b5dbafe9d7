"""Exact errors for independent tokens of a measure: against prompts, against the Gaussian theory, and finer rules."""

import numpy as np
import pytest

from lib.experiments.settings import unit_measures
from lib.finite_prompt import (
    any_measure,
    measure_deviation,
    measure_error,
    output_error,
    tokens_deviation,
    tokens_error,
)
from lib.finite_prompt.one_query import mean_output
from lib.prompts.errors import prompt_errors
from lib.prompts.streams import stream
from lib.tokens.families import Gaussian, Rademacher, Sphere, Uniform
from lib.tokens.heavy_tails import Laplace, StudentT

MEASURES = {f"{name}, {dim}": m for dim in (2, 3) for name, m in unit_measures(dim).items()} | {"Laplace": Laplace(2)}


def head(dim: int, size: float = 1.0):
    rng = stream(3, "head", dim)
    query, U, V = rng.standard_normal(dim), rng.standard_normal((dim, dim)), rng.standard_normal((2, dim))
    return query, size * U / np.linalg.norm(U @ query), V


@pytest.mark.parametrize("s", [0.0, 0.3, 1.0, 3.0])
def test_gaussian_tokens_have_the_errors_of_the_gaussian_theory(s):
    query, U, V = head(3, s)
    gamma, mean, lengths = np.diag([2.0, 1.0, 0.5]), np.array([1.0, -2.0, 0.5]), np.array([1, 2, 50, 1e6, 1e15])
    found = measure_error(Gaussian(mean, gamma), query, U, V, lengths)
    assert np.allclose(found.squared_error, output_error(gamma, query, U, V, lengths), rtol=1e-11)
    exact = [mean_output(mean, gamma, query, U, V, length) for length in lengths]
    assert np.allclose(found.mean, exact, rtol=1e-11)


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_against_prompts(name):
    """False-alarm rate 6e-4 in all: 22 means, each within 4.2 standard errors."""
    measure, lengths = MEASURES[name], (7, 60)
    query, U, V = head(measure.dim)
    exact = measure_error(measure, query, U, V, lengths)
    assert np.allclose(exact.limit, V @ measure.tilted_mean(U @ query), rtol=1e-9, atol=1e-12)
    for length, error in zip(lengths, exact.squared_error, strict=True):
        losses = prompt_errors(measure, query, U, V, length, 4000, stream(1, name, length))[:, 0]
        assert abs(losses.mean() - error) < 4.2 * losses.std() / np.sqrt(4000)


@pytest.mark.parametrize("name", MEASURES)
def test_a_finer_rule_changes_nothing(name, monkeypatch):
    query, U, V = head(MEASURES[name].dim)
    coarse = measure_error(MEASURES[name], query, U, V, [1, 30, 1000]).squared_error
    for constant, value in (("NODE_STEP", 0.3), ("SPHERE_NODES", 260)):
        monkeypatch.setattr(any_measure, constant, value)
    assert np.allclose(measure_error(MEASURES[name], query, U, V, [1, 30, 1000]).squared_error, coarse, rtol=1e-10)


def test_a_query_that_does_not_score_averages():
    for measure in (Sphere(4, 2.0), Rademacher(4), Uniform(2, 1.0), Gaussian.centered(np.eye(3))):
        V = np.eye(measure.dim)
        found = measure_error(measure, np.zeros(measure.dim), V, V, [1, 10])
        assert np.allclose(found.squared_error, np.trace(measure.covariance) / np.array([1, 10]))


def test_what_has_no_limit_or_no_rule_says_so():
    with pytest.raises(ValueError, match="exponential moments exist for tilts below the rate"):
        measure_error(Laplace(1), [2.0], np.eye(1), np.eye(1), 10)
    with pytest.raises(ValueError, match="no exponential moment exists, so that attention has no limit"):
        measure_error(StudentT(1, 3.0), [2.0], np.eye(1), np.eye(1), 10)
    with pytest.raises(ValueError, match="no rule is known for StudentT"):
        measure_error(StudentT(1, 3.0), [0.0], np.eye(1), np.eye(1), 10)
    with pytest.raises(ValueError, match="tokens of dimension 3 need query"):
        measure_error(Rademacher(3), np.ones(2), np.eye(2), np.eye(2), 10)


def test_the_parts_of_the_deviation_add_up_to_it():
    query, U, V = head(3)
    lengths, tokens = [1, 20, 500], stream(0, "list").standard_t(4, (300, 3))
    parts = tokens_deviation(tokens, query, U, V, lengths, weights=np.arange(300))
    mean, gamma = np.average(tokens, axis=0, weights=np.arange(300)), np.cov(tokens.T, aweights=np.arange(300), ddof=0)
    linear = V @ (mean + gamma @ U @ query)
    total = tokens_error(tokens, query, U, V, lengths, weights=np.arange(300), target=linear).squared_error
    total = total / (linear @ linear)
    assert np.allclose(parts.total, total, rtol=1e-10)
    assert parts.nonlinearity > 0 and (np.diff(parts.fluctuation) < 0).all() and (np.diff(parts.bias) < 0).all()


def test_gaussian_tokens_have_no_nonlinearity_and_a_zero_map_no_deviation():
    query, U, V = head(3)
    parts = measure_deviation(Gaussian.centered(np.eye(3)), query, U, V, [10])
    assert parts.nonlinearity < 1e-25 and abs(parts.cross[0]) < 1e-12
    exact = output_error(np.eye(3), query, U, V, [10]) / ((V @ U @ query) ** 2).sum()
    assert np.allclose(parts.total, exact)
    with pytest.raises(ValueError, match="the linear map gives zero"):
        measure_deviation(Rademacher(3), np.zeros(3), U, V, [10])
