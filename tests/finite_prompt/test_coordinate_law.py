"""Tokens with independent coordinates by their moments: against lists of atoms, dense rules, and finer lines."""

import itertools

import numpy as np
import pytest

from lib.finite_prompt import coordinate_law, measure_error, tokens_error
from lib.finite_prompt.coordinate_law import CoordinateLaw
from lib.prompts.streams import stream
from lib.tokens.families import Rademacher, Uniform
from lib.tokens.heavy_tails import Laplace, StudentT

LENGTHS = [1, 2, 10, 1e3, 1e6, 1e10, 1e15]


def tilt(dim: int, size: float) -> np.ndarray:
    direction = stream(5, "direction", dim).standard_normal(dim)
    return size * direction / np.linalg.norm(direction)


def agree(found, exact, rtol: float = 2e-12) -> None:
    scale = exact.squared_error.max()
    assert np.allclose(found.squared_error, exact.squared_error, rtol=rtol, atol=1e-14 * scale)
    assert np.allclose(found.inverse_participation, exact.inverse_participation, rtol=rtol, atol=0)
    assert np.allclose(found.mean, exact.mean, rtol=0, atol=1e-12 * scale**0.5)


def legendre(edges: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(order)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (nodes + 1)).ravel(), (half * weights).ravel()


@pytest.mark.parametrize("size", [0.0, 1e-6, 0.3, 2.0, 10.0])
@pytest.mark.parametrize("dim", [1, 3, 6])
def test_random_signs_are_a_list_of_atoms(dim, size):
    V = stream(1, "V", dim).standard_normal((2, dim))
    atoms = 1.2 * np.array(list(itertools.product([-1, 1], repeat=dim)))
    for target in (None, np.ones(2)):
        found = measure_error(Rademacher(dim, 1.2), tilt(dim, size), np.eye(dim), V, LENGTHS, target=target)
        agree(found, tokens_error(atoms, tilt(dim, size), np.eye(dim), V, LENGTHS, target=target))


@pytest.mark.parametrize("size", [0.0, 1e-6, 0.02, 0.3, 2.0, 8.0])
def test_uniform_coordinates_against_a_dense_list(size):
    x, w = legendre(np.array([-1.5, 1.5]), 80)
    nodes = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    exact = tokens_error(nodes, tilt(2, size), np.eye(2), np.eye(2), LENGTHS, weights=np.outer(w, w).ravel())
    agree(measure_error(Uniform(2, 1.5), tilt(2, size), np.eye(2), np.eye(2), LENGTHS), exact)


@pytest.mark.parametrize("size", [1e-6, 0.3, 0.6, 0.8, -0.8])
def test_laplace_coordinates_against_a_dense_list(size):
    """Half of what long prompts draw lies beyond 20 scales at the largest tilt."""
    x, w = legendre(np.linspace(0, 250, 2001), 12)
    nodes, weights = np.concatenate([-x[::-1], x]), np.concatenate([(w * np.exp(-x))[::-1], w * np.exp(-x)])
    one, lengths = np.eye(1), [1, 10, 1e3, 1e6, 1e10]
    exact = tokens_error(nodes[:, None], [size], one, one, lengths, weights=weights)
    agree(measure_error(Laplace(1, 1.0), [size], one, one, lengths), exact, 1e-9)


@pytest.mark.parametrize(
    "measure", [Rademacher(12), Uniform(12, 1.0), Laplace(12, 0.5)], ids=lambda m: type(m).__name__
)
def test_finer_lines_change_nothing_in_a_dimension_that_no_rule_reaches(measure, monkeypatch):
    V = stream(2, "V").standard_normal((3, 12))
    arguments = measure, tilt(12, 1.8), np.eye(12), V, LENGTHS
    coarse = measure_error(*arguments, target=np.ones(3))
    for name, value in (("NEAR", 1.5), ("NEGLIGIBLE", 45.0), ("SMALL_TERMS", 95.0), ("TAIL", 40.0), ("LOUDEST", 90.0)):
        monkeypatch.setattr(coordinate_law, name, value)
    agree(coarse, measure_error(*arguments, target=np.ones(3)), 1e-11)


def test_a_coordinate_that_does_not_score_only_adds_its_variance():
    """In two dimensions with a tilt along the first, the second adds its variance times the inverse participation."""
    lengths = [1, 7, 1e4]
    for kind in (Rademacher, Laplace):
        both = measure_error(kind(2, 0.9), [0.8, 0.0], np.eye(2), np.eye(2), lengths)
        one = measure_error(kind(1, 0.9), [0.8], np.eye(1), np.eye(1), lengths)
        across = kind(1, 0.9).covariance[0, 0] * one.inverse_participation
        assert np.allclose(both.squared_error, one.squared_error + across, rtol=1e-12)


@pytest.mark.parametrize(
    "measure", [Rademacher(1, 1.3), Uniform(1, 0.7), Laplace(1, 0.8)], ids=lambda m: type(m).__name__
)
def test_moments_of_a_coordinate_are_those_of_its_measure(measure):
    x = np.array([-1.1, -1e-3, 0.0, 0.02, 0.03, 0.05, 1.1])
    value, slope, second = coordinate_law.coordinate_moments(measure, x)
    assert np.allclose(value, measure.log_mgf(x[:, None]), rtol=1e-12, atol=1e-15)
    assert np.allclose(slope, measure.tilted_mean(x[:, None])[:, 0], rtol=1e-11, atol=1e-15)
    assert np.allclose(second - slope**2, measure.tilted_covariance(x[:, None])[:, 0, 0], rtol=1e-9)
    z = np.array([0.3 + 2j, -0.3 + 2j, 0.01 - 0.01j])  # the real axis, and analytic off it
    turned = coordinate_law.coordinate_moments(measure, z)
    step = 1e-6
    above, below = (coordinate_law.coordinate_moments(measure, z + e) for e in (step, -step))
    assert np.allclose((above[0] - below[0]) / (2 * step), turned[1], rtol=1e-7)
    assert np.allclose((above[1] - below[1]) / (2 * step), turned[2] - turned[1] ** 2, rtol=1e-7)


def test_what_is_not_exact_says_so():
    with pytest.raises(ValueError, match=r"scores of deviation up to 12 are exact .* received 13; give samples"):
        CoordinateLaw(Rademacher(1), np.array([13.0]), np.eye(1))
    with pytest.raises(ValueError, match="no rule is known for StudentT; give samples to tokens_error"):
        CoordinateLaw(StudentT(1, 3.0), np.zeros(1), np.eye(1))
