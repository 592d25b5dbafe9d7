"""The regressions of notebook 04: covariances by name and a random one, and those of the authors' public driver."""

import numpy as np

from lib.experiments.settings import regression
from lib.prompts.streams import stream
from lib.regression.task import InContextRegression
from lib.tokens.covariances import covariance_matrix

DEGREES = 3  # of freedom a dimension, of the random covariance


def tasks(*, covariances: list, dim: int, noise_std: float, seed: int) -> dict[str, InContextRegression]:
    """A regression for each named covariance, and one for a random covariance in random axes.

    Args:
        covariances: as :func:`lib.tokens.covariances.covariance_matrix` takes them.
        dim: d of x.
        noise_std: sigma_eps.
        seed: of the random covariance.
    """
    root = stream(seed, "random covariance").standard_normal((dim, DEGREES * dim))
    named = {str(name): regression(name, dim, noise_std) for name in covariances}
    return named | {"random": InContextRegression(root @ root.T / (DEGREES * dim), noise_std)}


def public_tasks(
    *, dim: int, correlation: float, noise_std: float, task_variance: float
) -> dict[str, InContextRegression]:
    """The regression of the authors' public driver: as intended, and as its covariance is applied there.

    Intended: x and query N(0, Sigma), Sigma Toeplitz. In the driver the prompt's x go through the lower Cholesky factor
    C twice, so that their covariance is (C C)(C C)', and the query's never.

    Args:
        dim: d of x.
        correlation: of neighbors among its coordinates.
        noise_std: sigma_eps.
        task_variance: sigma_w^2.
    """
    sigma = covariance_matrix(f"toeplitz({correlation})", dim)
    C = np.linalg.cholesky(sigma)
    twice = C @ C @ (C @ C).T
    return {
        "covariance applied once": InContextRegression(sigma, noise_std, task_variance),
        "applied twice to the prompt, never to the query": InContextRegression(
            (twice + twice.T) / 2, noise_std, task_variance, query_covariance=np.eye(dim)
        ),
    }
