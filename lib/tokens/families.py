"""Token measures: Gaussian, Gaussian mixture, and the bounded Rademacher, uniform and sphere.

Gaussian is the one whose tilted mean is affine in the tilt, so the one on which infinite-prompt softmax attention is
a linear map; the others are what it is compared with. See `TokenMeasure` for the shapes, the same for all of them.
"""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from scipy.special import logsumexp, softmax

from lib.tokens.bessel import bessel_ratio, log_sphere_mgf
from lib.tokens.covariances import as_covariance, is_diagonal, sqrt_psd
from lib.tokens.measure import TokenMeasure


def _constant(array) -> np.ndarray:
    array = np.array(array, dtype=float)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Gaussian(TokenMeasure):
    """N(mean, covariance), any positive semidefinite covariance, singular too.

        kappa(a) = a.m + a^T Gamma a / 2,   tilted mean m + Gamma a,   tilted covariance Gamma.

    mean (d,), covariance (d, d). Sampling costs one normal number a coordinate (of positive variance, if Gamma is
    diagonal) and, only for a Gamma that is not diagonal, one product with its symmetric square root.
    """

    mean: np.ndarray
    covariance: np.ndarray

    def __post_init__(self):
        mean = _constant(self.mean)
        if mean.ndim != 1 or not np.isfinite(mean).all():
            raise ValueError(f"Gaussian: mean must be a vector of finite numbers, received shape {mean.shape}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", _constant(as_covariance(self.covariance, len(mean))))

    @classmethod
    def centered(cls, covariance) -> "Gaussian":
        """N(0, covariance)."""
        return cls(np.zeros(len(covariance)), covariance)

    @property
    def dim(self) -> int:
        return len(self.mean)

    @cached_property
    def _deviations(self):  # of the coordinates: a number, a vector, or None if they are correlated
        if not is_diagonal(self.covariance):
            return None
        deviations = np.sqrt(np.maximum(np.diag(self.covariance), 0.0))
        return deviations[0] if np.ptp(deviations) == 0 else deviations

    @cached_property
    def _root(self):
        return sqrt_psd(self.covariance)

    def sample(self, n_prompts, length, rng):
        deviations = self._deviations
        active = None if deviations is None or np.all(deviations) else deviations > 0
        if np.ndim(active):  # draw only the coordinates that vary
            tokens = np.zeros((n_prompts, length, self.dim))
            tokens[..., active] = rng.standard_normal((n_prompts, length, active.sum())) * deviations[active]
        else:
            tokens = rng.standard_normal((n_prompts, length, self.dim))
            if deviations is None:
                tokens = (tokens.reshape(-1, self.dim) @ self._root).reshape(tokens.shape)
            elif np.any(deviations != 1):
                tokens *= deviations
        if self.mean.any():
            tokens += self.mean
        return tokens

    def log_mgf(self, a):
        a = self._tilt(a)
        return a @ self.mean + np.vecdot(a, a @ self.covariance) / 2

    def tilted_mean(self, a):
        return self.mean + self._tilt(a) @ self.covariance

    def tilted_covariance(self, a):
        return np.broadcast_to(self.covariance, (*self._tilt(a).shape[:-1], self.dim, self.dim))


@dataclass(frozen=True, eq=False)
class GaussianMixture(TokenMeasure):
    """sum_k w_k N(m_k, G_k): a tilt moves each component as a Gaussian and reweights them by a softmax.

        alpha = softmax_k(log w_k + m_k.a + a^T G_k a / 2),   tilted mean sum_k alpha_k (m_k + G_k a),

    and the tilted covariance is the mixture's, with weights alpha and the moved means. weights (K,) positive with
    sum 1, means (K, d), covariances (K, d, d).
    """

    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def __post_init__(self):
        weights, means = _constant(self.weights), _constant(self.means)
        count = len(self.covariances)
        if weights.ndim != 1 or means.ndim != 2 or not len(weights) == len(means) == count:
            shapes = f"weights {weights.shape}, means {means.shape}, {count} covariances"
            raise ValueError(f"GaussianMixture: expected weights (K,), means (K, d), K covariances, received {shapes}")
        if not (weights > 0).all() or not abs(weights.sum() - 1) < 1e-9:
            raise ValueError(f"GaussianMixture: weights must be positive and sum to 1, received {weights.tolist()}")
        object.__setattr__(self, "components", tuple(map(Gaussian, means, self.covariances)))
        object.__setattr__(self, "weights", _constant(weights / weights.sum()))
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "covariances", _constant([part.covariance for part in self.components]))

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    @cached_property
    def mean(self):
        return _constant(self.tilted_mean(np.zeros(self.dim)))

    @cached_property
    def covariance(self):
        return _constant(self.tilted_covariance(np.zeros(self.dim)))

    def sample(self, n_prompts, length, rng):
        labels = rng.choice(len(self.weights), size=(n_prompts, length), p=self.weights)
        tokens = np.empty((n_prompts, length, self.dim))
        for k, component in enumerate(self.components):
            chosen = labels == k
            tokens[chosen] = component.sample(1, np.count_nonzero(chosen), rng)[0]
        return tokens

    def _log_joint(self, a):  # (..., K): the component's log weight plus its cumulant generating function
        return np.log(self.weights) + np.stack([part.log_mgf(a) for part in self.components], axis=-1)

    def _tilted_parts(self, a):  # their weights (..., K) and means (..., K, d)
        moved = np.stack([part.tilted_mean(a) for part in self.components], axis=-2)
        return softmax(self._log_joint(a), axis=-1), moved

    def log_mgf(self, a):
        return logsumexp(self._log_joint(a), axis=-1)

    def tilted_mean(self, a):
        alpha, moved = self._tilted_parts(a)
        return np.vecmat(alpha, moved)

    def tilted_covariance(self, a):
        alpha, moved = self._tilted_parts(a)
        centered = moved - np.vecmat(alpha, moved)[..., None, :]
        between = np.matrix_transpose(centered) @ (alpha[..., None] * centered)
        return between + np.tensordot(alpha, self.covariances, axes=1)


class Centered(TokenMeasure):
    """Mean zero and covariance a multiple of the identity: dim and one positive size, the second field."""

    _smallest_dim = 1

    def __post_init__(self):
        size = fields(self)[1].name
        if not isinstance(self.dim, int | np.integer) or self.dim < self._smallest_dim:
            expected = f"dim must be an integer >= {self._smallest_dim}"
            raise ValueError(f"{type(self).__name__}: {expected}, received {self.dim!r}")
        if not 0 < getattr(self, size) < np.inf:
            expected = f"{size} must be a positive number"
            raise ValueError(f"{type(self).__name__}: {expected}, received {getattr(self, size)!r}")

    @cached_property
    def mean(self):
        return _constant(np.zeros(self.dim))

    @cached_property
    def covariance(self):
        return _constant(self.tilted_covariance(np.zeros(self.dim)))


@dataclass(frozen=True)
class Rademacher(Centered):
    """Independent coordinates +scale or -scale, each with probability 1/2.

    kappa(a) = sum_j log cosh(c a_j),   tilted mean c tanh(c a_j),   tilted covariance diag(c^2 / cosh^2(c a_j)).
    """

    dim: int
    scale: float = 1.0

    def sample(self, n_prompts, length, rng):
        signs = rng.integers(0, 2, (n_prompts, length, self.dim), dtype=bool)
        return (2.0 * self.scale) * signs - self.scale

    def log_mgf(self, a):
        t = np.abs(self.scale * self._tilt(a))
        near_zero = np.log1p(2 * np.sinh(np.minimum(t, 1) / 2) ** 2)
        return np.where(t < 1, near_zero, t - np.log(2) + np.log1p(np.exp(-2 * t))).sum(axis=-1)

    def tilted_mean(self, a):
        return self.scale * np.tanh(self.scale * self._tilt(a))

    def tilted_covariance(self, a):
        decay = np.exp(-2 * np.abs(self.scale * self._tilt(a)))
        return (self.scale**2 * 4 * decay / (1 + decay) ** 2)[..., None] * np.eye(self.dim)


@dataclass(frozen=True)
class Uniform(Centered):
    """Independent coordinates, uniform on [-c, c], c the half width: a coordinate of the sphere in dimension 3.

    kappa(a) = sum_j log(sinh(c a_j) / (c a_j)),   tilted mean c coth(c a_j) - 1 / a_j,
    tilted covariance diag(1 / a_j^2 - c^2 / sinh^2(c a_j)).
    """

    dim: int
    half_width: float

    def sample(self, n_prompts, length, rng):
        return rng.uniform(-self.half_width, self.half_width, (n_prompts, length, self.dim))

    def log_mgf(self, a):
        return log_sphere_mgf(3, np.abs(self.half_width * self._tilt(a))).sum(axis=-1)

    def tilted_mean(self, a):
        t = self.half_width * self._tilt(a)
        return self.half_width * t * bessel_ratio(3 / 2, t)[0]

    def tilted_covariance(self, a):
        slope = bessel_ratio(3 / 2, self.half_width * self._tilt(a))[1]
        return self.half_width**2 * slope[..., None] * np.eye(self.dim)


@dataclass(frozen=True)
class Sphere(Centered):
    """Uniform on the sphere of radius r in R^dim, dim >= 2 (in dimension 1 it is Rademacher). With n = a / |a|,
    t = r |a| and A(t) = I_{d/2}(t) / I_{d/2-1}(t):

        kappa'(t) = A(t),   tilted mean r A(t) n,   tilted covariance r^2 ( A(t)/t (I - n n^T) + A'(t) n n^T ).
    """

    dim: int
    radius: float
    _smallest_dim = 2

    def _polar(self, a):  # r |a| and a / |a|, zero at a = 0
        a = self._tilt(a)
        largest = np.abs(a).max(axis=-1, keepdims=True)
        unit = a / np.where(largest == 0, 1.0, largest)  # no square of a tiny number underflows
        norm = np.linalg.norm(unit, axis=-1, keepdims=True)
        return self.radius * (largest * norm)[..., 0], unit / np.maximum(norm, 1.0)

    def sample(self, n_prompts, length, rng):
        tokens = rng.standard_normal((n_prompts, length, self.dim))
        tokens *= self.radius / np.sqrt(np.vecdot(tokens, tokens))[..., None]
        return tokens

    def log_mgf(self, a):
        return log_sphere_mgf(self.dim, self._polar(a)[0])

    def tilted_mean(self, a):
        t, unit = self._polar(a)
        return self.radius * (t * bessel_ratio(self.dim / 2, t)[0])[..., None] * unit

    def tilted_covariance(self, a):
        t, unit = self._polar(a)
        across, along = (f[..., None, None] for f in bessel_ratio(self.dim / 2, t))
        radial = unit[..., :, None] * unit[..., None, :]
        return self.radius**2 * (across * np.eye(self.dim) + (along - across) * radial)
