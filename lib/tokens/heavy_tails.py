"""Token measures with heavy tails: attention on Laplace tokens has a limit for small queries, on Student t for none.

Both have independent coordinates. Where the exponential moment that a limit is made of is infinite, the error says so.
"""

from dataclasses import dataclass

import numpy as np

from lib.tokens.families import Centered


@dataclass(frozen=True)
class Laplace(Centered):
    """Independent coordinates with density exp(-|x| / b) / (2 b), b the scale: variance 2 b^2.

    kappa(a) = -sum_j log(1 - b^2 a_j^2),   tilted mean 2 b^2 a_j / (1 - b^2 a_j^2),   for |a_j| < 1 / b;

    beyond, the exponential moment is infinite: ValueError.
    """

    dim: int
    scale: float = np.sqrt(0.5)

    def sample(self, n_prompts, length, rng):
        return rng.laplace(0.0, self.scale, (n_prompts, length, self.dim))

    def log_mgf(self, a):
        return -np.log1p(-((self.scale * self._inside(a)) ** 2)).sum(axis=-1)

    def tilted_mean(self, a):
        a = self._inside(a)
        return 2 * self.scale**2 * a / (1 - (self.scale * a) ** 2)

    def tilted_covariance(self, a):
        u = (self.scale * self._inside(a)) ** 2
        return (2 * self.scale**2 * (1 + u) / (1 - u) ** 2)[..., None] * np.eye(self.dim)

    def _inside(self, a):
        a = self._tilt(a)
        if np.abs(a).max(initial=0.0) * self.scale >= 1:
            raise ValueError(
                f"Laplace: exponential moments exist for tilts below the rate {1 / self.scale:g} in every coordinate, "
                f"received {np.abs(a).max():g}: attention has no limit there"
            )
        return a


@dataclass(frozen=True)
class StudentT(Centered):
    """Independent coordinates, Student t with some degrees of freedom, variance df / (df - 2).

    No exponential moment exists, so that attention has no limit: kappa and what is made of it are a ValueError at every
    tilt but zero. Samples exist.
    """

    dim: int
    df: float

    def sample(self, n_prompts, length, rng):
        return rng.standard_t(self.df, (n_prompts, length, self.dim))

    def log_mgf(self, a):
        return np.zeros(self._zero(a).shape[:-1])

    def tilted_mean(self, a):
        return np.zeros_like(self._zero(a))

    def tilted_covariance(self, a):
        variance = self.df / (self.df - 2) if self.df > 2 else np.inf
        return np.broadcast_to(np.diag(np.full(self.dim, variance)), (*self._zero(a).shape, self.dim))

    def _zero(self, a):
        a = self._tilt(a)
        if a.any():
            raise ValueError("StudentT: no exponential moment exists, so that attention has no limit")
        return a
