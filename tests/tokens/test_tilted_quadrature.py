"""The quadrature that knows no formula: elementary cases with answers of their own."""

import numpy as np
import pytest

from lib.tokens.families import Gaussian, GaussianMixture, Rademacher, Sphere, Uniform
from lib.tokens.tilted_quadrature import tilted_mean_by_quadrature

A = np.array([0.3, -1.1, 0.4])


def test_gaussian_is_shifted_along_its_covariance():
    covariance = np.diag([1.0, 0.0, 3.0])
    found = tilted_mean_by_quadrature(Gaussian(np.ones(3), covariance), A)
    np.testing.assert_allclose(found, 1 + covariance @ A, rtol=1e-13)
    point = Gaussian(np.ones(3), np.zeros((3, 3)))
    np.testing.assert_array_equal(tilted_mean_by_quadrature(point, A), np.ones(3))


def test_a_mixture_of_two_equal_components_is_one():
    single = Gaussian(np.ones(3), np.eye(3))
    double = GaussianMixture(np.array([0.3, 0.7]), np.ones((2, 3)), np.stack([np.eye(3)] * 2))
    np.testing.assert_allclose(tilted_mean_by_quadrature(double, A), tilted_mean_by_quadrature(single, A), rtol=1e-13)


def test_two_atoms_make_a_hyperbolic_tangent():
    np.testing.assert_allclose(tilted_mean_by_quadrature(Rademacher(3), A), np.tanh(A), rtol=1e-14)


def test_a_coordinate_of_the_sphere_in_space_is_uniform():
    along = tilted_mean_by_quadrature(Sphere(3, 1.0), np.array([0.0, 0.0, 2.0]))
    flat = tilted_mean_by_quadrature(Uniform(1, 1.0), np.array([2.0]))
    np.testing.assert_allclose(along, [0, 0, flat[0]], atol=1e-13)


def test_an_unknown_measure_is_refused():
    with pytest.raises(TypeError, match="no quadrature for"):
        tilted_mean_by_quadrature(object(), A)


def test_quadrature_where_a_tilt_is_large_and_scales_are_not_one():
    """Against the formulas: a Gaussian far out, a mixture whose components are reweighted, signs of size 0.7."""
    a = np.array([4.0, -3.0])
    gaussian = Gaussian(np.array([0.5, 0.0]), np.array([[6.0, 1.0], [1.0, 4.0]]))
    mixture = GaussianMixture(np.array([0.3, 0.7]), np.array([[1.0, 0.0], [-1.0, 0.5]]), np.stack([np.eye(2)] * 2))
    for measure, tilt in ((gaussian, a), (mixture, a / 10), (Rademacher(2, 0.7), a / 3)):
        np.testing.assert_allclose(tilted_mean_by_quadrature(measure, tilt), measure.tilted_mean(tilt), rtol=1e-10)
