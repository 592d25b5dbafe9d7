r"""Tilted means by brute quadrature, from the density alone: a check of the formulas that knows none of them.

Each measure is reduced by its symmetry to integrals over one variable t, and ``E[X e^{a.X}] / E[e^{a.X}]`` is the ratio
of two sums over nodes: no generating function, no derivative, no closed form.
"""

from functools import singledispatch

import numpy as np

from lib.tokens.covariances import sqrt_psd
from lib.tokens.families import Gaussian, GaussianMixture, Rademacher, Sphere, Uniform


@singledispatch
def tilted_mean_by_quadrature(measure, a) -> np.ndarray:
    """``E[X e^{a.X}] / E[e^{a.X}]`` by quadrature.

    Args:
        measure: one of those of :mod:`lib.tokens.families`. a: one tilt, shape (d,), of size up to about 10.

    Returns:
        Shape (d,), to about 1e-13.
    """
    raise TypeError(f"no quadrature for {type(measure).__name__}")


@tilted_mean_by_quadrature.register
def _(measure: Gaussian, a) -> np.ndarray:
    return _gaussian(measure.mean, measure.covariance, a)[1]


@tilted_mean_by_quadrature.register
def _(measure: GaussianMixture, a) -> np.ndarray:
    parts = [_gaussian(m, G, a) for m, G in zip(measure.means, measure.covariances, strict=True)]
    log_mass = np.log(measure.weights) + [part[0] for part in parts]
    mass = np.exp(log_mass - log_mass.max())
    return mass @ np.array([part[1] for part in parts]) / mass.sum()


@tilted_mean_by_quadrature.register
def _(measure: Rademacher, a) -> np.ndarray:
    atoms = np.array([-1.0, 1.0]) * measure.scale
    return np.array([_ratio(atoms, np.ones(2), slope)[1] for slope in a])


@tilted_mean_by_quadrature.register
def _(measure: Uniform, a) -> np.ndarray:
    nodes, weights = np.polynomial.legendre.leggauss(120)
    return np.array([_ratio(nodes * measure.half_width, weights, slope)[1] for slope in a])


@tilted_mean_by_quadrature.register
def _(measure: Sphere, a) -> np.ndarray:
    size = np.linalg.norm(a)
    # X = r (t e + sqrt(1 - t^2) n), e along a, n uniform across it; t = cos(angle), dt (1 - t^2)^{(d-3)/2}.
    nodes, weights = np.polynomial.legendre.leggauss(200)
    angle = np.pi * (nodes + 1) / 2
    along = _ratio(measure.radius * np.cos(angle), weights * np.sin(angle) ** (measure.dim - 2), size)[1]
    return along * a / size


def _gaussian(mean, covariance, a) -> tuple[float, np.ndarray]:
    """log E e^{a.X} and the tilted mean: X = m + R xi, and a.X depends on xi along R a only."""
    root = sqrt_psd(covariance)
    direction = root @ a
    size = np.linalg.norm(direction)
    if size == 0:
        return float(a @ mean), np.array(mean)
    t = np.arange(-12.0, size + 12.0, 0.05)
    log_mass, along = _ratio(t, np.exp(-(t**2) / 2), size)
    return float(a @ mean + log_mass), mean + root @ direction / size * along


def _ratio(nodes, weights, slope) -> tuple[float, float]:
    """log sum w e^{slope t} and the mean of t under these weights."""
    exponent = slope * nodes
    peak = exponent.max()
    mass = weights * np.exp(exponent - peak)
    return float(np.log(mass.sum()) + peak), float(mass @ nodes / mass.sum())
