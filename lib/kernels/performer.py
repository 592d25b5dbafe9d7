r"""Performer: softmax attention by positive random features (FAVOR+), and what its randomness costs.

With directions u_1 .. u_m ~ N(0, I) the positive features of a key k, or of a query q, are

    phi(k)_j = exp(u_j . k - |k|^2 / 2) / sqrt(m),      E phi(k) . phi(q) = exp(k . q),

so that sums over tokens can be taken before the query is known. Only k + q matters for the error of one kernel value:
relative to exp(k . q) it is the mean of the variables exp(u_j . (k + q) - |k + q|^2 / 2), of variance e^{|k+q|^2} - 1.

Source: Choromanski et al., arXiv 2009.14794 (features, variance of independent ones, bound for orthogonal ones). The
exact variance of orthogonal features and the error of the output are derived in notebook 05.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln, softmax

from lib.kernels.interface import Cost, PromptState, StreamingKernel
from lib.prompts.batches import batches

FEATURES_IN_MEMORY = 2**18  # of a block of tokens: 2 MB


def random_directions(features: int, dim: int, rng, orthogonal: bool = True, size: tuple[int, ...] = ()) -> np.ndarray:
    """Random directions, shape (*size, features, dim), each marginally N(0, I).

    orthogonal: in blocks of ``dim`` mutually orthogonal ones, with independent lengths; otherwise independent.
    """
    if not orthogonal:
        return rng.standard_normal((*size, features, dim))
    blocks = -(-features // dim)
    Q, R = np.linalg.qr(rng.standard_normal((*size, blocks, dim, dim)))
    Q = Q * np.where(np.diagonal(R, axis1=-2, axis2=-1) < 0, -1.0, 1.0)[..., None, :]  # else not uniform
    lengths = np.sqrt(rng.chisquare(dim, (*size, blocks, dim)))
    return (Q.mT * lengths[..., None]).reshape(*size, -1, dim)[..., :features, :]


def log_features(x, directions) -> np.ndarray:
    """Logarithms of the positive features, up to the factor 1/sqrt(m): x (..., dim) to (..., m)."""
    x = np.asarray(x, float)
    return x @ directions.mT - np.vecdot(x, x)[..., None] / 2


def relative_variance(squared_norm, features: int, dim: int | None = None) -> np.ndarray:
    r"""Variance of ``phi(k) . phi(q) / exp(k . q)``, a function of n = |k + q|^2 = squared_norm alone.

    Independent directions (``dim`` omitted): ``(e^{n} - 1) / m``. Orthogonal ones, in blocks of ``dim``:

        (e^{n} - 1) / m  -  (share of pairs in a block) (1 - C e^{-n}),
        C = sum_{j,k} (n / 2)^{j+k} / (j! k!)  (r)_j (r)_k / (r)_{j+k},    r = dim / 2,

    with (r)_j the rising factorial: less, at every n. Returns the shape of squared_norm.
    Source: arXiv 2009.14794 for independent ones; exact here for orthogonal ones (notebook 05).
    """
    z2 = np.asarray(squared_norm, float)
    independent = np.expm1(z2) / features
    if dim is None:
        return independent
    sizes = np.diff([*range(0, features, dim), features])
    pairs = (sizes * (sizes - 1)).sum() / features**2
    return independent - pairs * -np.expm1(_log_pair_mean(z2, dim) - z2)


def _log_pair_mean(z2: np.ndarray, dim: int) -> np.ndarray:
    """log C of :func:`relative_variance`, for two orthogonal directions."""
    terms = np.arange(int(40 + 4 * z2.max(initial=0)))
    rising = gammaln(dim / 2 + terms) - gammaln(dim / 2)
    both = gammaln(dim / 2 + terms[:, None] + terms) - gammaln(dim / 2)
    coefficients = rising[:, None] + rising - both - gammaln(terms + 1)[:, None] - gammaln(terms + 1)
    with np.errstate(divide="ignore"):
        half = np.log(z2 / 2)[..., None, None]
    power = terms[:, None] + terms
    exponents = np.where(power > 0, power * np.where(np.isneginf(half), -1e300, half), 0.0) + coefficients
    top = exponents.max((-2, -1), keepdims=True)
    return np.log(np.exp(exponents - top).sum((-2, -1))) + top[..., 0, 0]


def output_constant(key_mean, key_covariance, cross_covariance, query) -> float:
    r"""Limit of m E|Performer - softmax|^2 on long prompts, with independent features, as their number m grows.

    Gaussian keys N(mu, C), values with Cov(v, k) = B C, h = query + mu + C query, c_i the eigenvalues of C and h_i the
    coordinates of h in its eigenbasis:

        e^{|h|^2}  prod_i (1 - c_i^2)^{-1/2} e^{c_i h_i^2 / (1 - c_i)}  ( |B e|^2 + tr[B diag(c^2 / (1 - c^2)) B'] ),
        e_i = c_i h_i / (1 - c_i);      infinite once an eigenvalue of C reaches 1.

    Softmax is unchanged when keys are shifted, or scaled against the query; this constant is not.

    Args:
        key_mean (r,), key_covariance (r, r), cross_covariance Cov(v, k) (k, r), query (r,).

    Source: exact here (notebook 05): the delta method in m, then the prompt's length to infinity.
    """
    c, basis = np.linalg.eigh(np.asarray(key_covariance, float))
    if c[-1] >= 1:
        return np.inf
    c = np.maximum(c, 0.0)
    h = basis.T @ (query + key_mean + key_covariance @ query)
    values = np.asarray(cross_covariance, float) @ basis
    regression = np.divide(values, c, out=np.zeros_like(values), where=c > 0)  # B in the eigenbasis
    shift = regression @ (c * h / (1 - c))
    spread = (regression**2 @ (c**2 / (1 - c**2))).sum()
    log_factor = h @ h + (c * h**2 / (1 - c)).sum() - np.log1p(-(c**2)).sum() / 2
    with np.errstate(over="ignore"):
        return float(np.exp(log_factor) * (shift @ shift + spread))


class PerformerState(PromptState):
    """For each feature, the sums over tokens of its values and of its values times v: m (k + 1) numbers and a scale.

    Every feature keeps its own running maximum, so that nothing over- or underflows as a whole.
    """

    def __init__(self, kernel: "Performer"):
        self._kernel = kernel

    def _start(self, n, key_dim, value_dim):
        self._directions = self._kernel.directions(key_dim)
        m = len(self._directions)
        self._top, self._total = np.full((n, m), -np.inf), np.zeros((n, m))
        self._weighted = np.zeros((n, m, value_dim))

    def _add(self, keys, values):
        for block in batches(keys.shape[1], len(keys) * len(self._directions), FEATURES_IN_MEMORY):
            features = log_features(keys[:, block], self._directions)
            top = np.maximum(self._top, features.max(1))
            np.exp(np.subtract(features, top[:, None], out=features), out=features)
            kept = np.exp(self._top - top)
            self._total = kept * self._total + features.sum(1)
            self._weighted = kept[..., None] * self._weighted + features.mT @ values[:, block]
            self._top = top

    def _read(self, queries):
        # The output is a softmax over features of each feature's own average of the values.
        weights = softmax(queries @ self._directions.T + (self._top + np.log(self._total))[:, None], axis=-1)
        return weights @ (self._weighted / self._total[..., None])

    @property
    def numbers(self):
        return sum(x[0].size for x in (self._top, self._total, self._weighted))


@dataclass(frozen=True)
class Performer(StreamingKernel):
    """Softmax attention by positive random features, normalized: sum_i phi(q).phi(k_i) v_i / sum_i phi(q).phi(k_i).

    One pass, as a state of m (k + 2) numbers. Stable for scores of any finite size.

    Attributes:
        features: m, how many. orthogonal: directions in orthogonal blocks instead of independent ones.
        seed: of the directions; the same seed gives the same ones.
    """

    features: int = 256
    orthogonal: bool = True
    seed: int = 0

    def __post_init__(self):
        if not (isinstance(self.features, int | np.integer) and self.features >= 1):
            raise ValueError(f"features must be a whole number of at least 1, received {self.features!r}")

    def redraw(self, seed: int) -> "Performer":
        """The same kernel with other directions."""
        return replace(self, seed=seed)

    def directions(self, key_dim: int) -> np.ndarray:
        """The random directions for keys of this dimension, shape (m, r)."""
        return random_directions(self.features, key_dim, np.random.default_rng(self.seed), self.orthogonal)

    def state(self):
        return PerformerState(self)

    def cost(self, length, key_dim, value_dim):
        m = self.features
        build = length * (2 * m * key_dim + 2 * key_dim + m + 2 * m * value_dim + m)
        return Cost(build, m * (2 * key_dim + 1 + 2 * value_dim + 1), m * (value_dim + 2), m * key_dim)
