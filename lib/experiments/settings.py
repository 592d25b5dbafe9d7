"""Settings that several notebooks share: token measures, random heads, and tasks by name."""

import numpy as np

from lib.finite_prompt import score_deviation
from lib.prompts.streams import stream
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian, GaussianMixture, Rademacher, Sphere, Uniform
from lib.tokens.measure import TokenMeasure

UNIT_UNIFORM = np.sqrt(3.0)  # half width of the uniform law of variance 1
MIXTURE_SHIFT = 0.9  # of both components of the mixture, along the first axis


def unit_measures(dim: int) -> dict[str, TokenMeasure]:
    """A Gaussian and four other measures with the same mean, zero, and the same covariance, the identity."""
    shift, inner = MIXTURE_SHIFT * np.eye(dim)[0], np.eye(dim)
    inner[0, 0] = 1 - MIXTURE_SHIFT**2
    return {
        "Gaussian": Gaussian.centered(np.eye(dim)),
        "Rademacher": Rademacher(dim),
        "uniform": Uniform(dim, UNIT_UNIFORM),
        "sphere": Sphere(dim, np.sqrt(dim)),
        "mixture": GaussianMixture(np.array([0.5, 0.5]), np.stack([shift, -shift]), np.stack([inner, inner])),
    }


def setting_name(covariance, dim: int) -> str:
    """How a setting (covariance, dimension) is called in tables and figures."""
    return f"{covariance}, d = {dim}"


def generic_head(dim: int, covariance: np.ndarray, s: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A random query z (d,) and head U, V (d, d), without any symmetry, whose scores have the standard deviation s."""
    rng = stream(seed, "head", dim)
    query = rng.standard_normal(dim)
    U, V = rng.standard_normal((2, dim, dim)) / np.sqrt(dim)
    return query, U * s / score_deviation(covariance, query, U), V


def regression(covariance, dim: int, noise_std: float) -> InContextRegression:
    """In-context regression for a covariance by name, with unit tasks."""
    return InContextRegression(covariance_matrix(covariance, dim), noise_std)
