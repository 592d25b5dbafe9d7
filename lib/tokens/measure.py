"""What a token measure is: the law that the tokens of a prompt are drawn from, with its exponential tilts.

The infinite-prompt limit of softmax attention sees a token measure mu only through its cumulant generating function

    kappa(a) = log E exp(a.X),   grad kappa(a) = E[X e^{a.X}] / E[e^{a.X}],   Hess kappa(a),

the last two being the mean and the covariance of the exponentially tilted measure (Lemma 2.1).
"""

from abc import ABC, abstractmethod

import numpy as np


class TokenMeasure(ABC):
    """A law on R^dim with exponential moments, immutable. `mean` is (dim,), `covariance` (dim, dim).

    The tilt a has shape (..., dim): leading axes are batch axes, any number of them. Nothing overflows or divides
    zero by zero for |a| from 0 to 1e4. A wrong last axis is a ValueError that names both shapes.
    """

    dim: int
    mean: np.ndarray
    covariance: np.ndarray

    @abstractmethod
    def sample(self, n_prompts: int, length: int, rng: np.random.Generator) -> np.ndarray:
        """Independent tokens, (n_prompts, length, dim) float64."""

    @abstractmethod
    def log_mgf(self, a) -> np.ndarray:
        """Cumulant generating function kappa(a) = log E exp(a.X): a (..., dim) to (...)."""

    @abstractmethod
    def tilted_mean(self, a) -> np.ndarray:
        """Mean of the tilted measure, grad kappa(a): a (..., dim) to (..., dim)."""

    @abstractmethod
    def tilted_covariance(self, a) -> np.ndarray:
        """Covariance of the tilted measure, Hess kappa(a): a (..., dim) to (..., dim, dim)."""

    def _tilt(self, a) -> np.ndarray:
        a = np.asarray(a, dtype=float)
        if a.shape[-1:] != (self.dim,):
            raise ValueError(f"tilt: expected shape (..., {self.dim}), received {a.shape}")
        if not np.isfinite(a).all():
            raise ValueError("tilt: its entries must be finite")
        return a
