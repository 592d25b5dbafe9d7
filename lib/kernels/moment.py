"""Moment and linear attention."""

from dataclasses import dataclass

import numpy as np

from lib.kernels.interface import Cost, PromptState, StreamingKernel


class MomentState(PromptState):
    """Count, means and centered cross moments of keys and values, in one pass and merged without cancellation.

    Attributes:
        key_mean (n, r), value_mean (n, k); cross (n, k, r), the sum of (value - mean)(key - mean)'.
    """

    def __init__(self, centered: bool, denominator: int = 0):
        self._centered, self._denominator = centered, denominator

    def _start(self, n, key_dim, value_dim):
        self.key_mean, self.value_mean = np.zeros((n, key_dim)), np.zeros((n, value_dim))
        self.cross = np.zeros((n, value_dim, key_dim))

    def _add(self, keys, values):
        key_mean, value_mean, new = keys.mean(1), values.mean(1), keys.shape[1]
        centered = values - value_mean[:, None]
        share = new / (self.count + new)
        key_shift, value_shift = key_mean - self.key_mean, value_mean - self.value_mean
        self.cross += centered.mT @ (keys - key_mean[:, None])
        self.cross += self.count * share * value_shift[..., None] * key_shift[:, None]
        self.key_mean = self.key_mean + share * key_shift
        self.value_mean = self.value_mean + share * value_shift

    def _read(self, queries):
        covariance = self.cross / (self.count - self._denominator)
        if self._centered:
            return self.value_mean[:, None] + queries @ covariance.mT
        second_moment = covariance + self.value_mean[..., None] * self.key_mean[:, None]
        return queries @ second_moment.mT

    @property
    def numbers(self):
        return sum(x[0].size for x in (self.key_mean, self.value_mean, self.cross))


@dataclass(frozen=True)
class MomentAttention(StreamingKernel):
    """The plug-in limit: the prompt's mean and covariance in place of the token measure's.

        mean(v) + Cov(v, k) query,     which is V (m_hat + Gamma_hat U z).

    Equivalently softmax with its weights linearized, ``w_i = (1 + score_i - mean score) / L``. It is the limit of
    softmax attention for Gaussian tokens and, where the prompt's moments are exact, equal to it.

    unbiased: divide the covariance by L - 1 instead of L (at least two tokens, then). On Gaussian tokens no unbiased
    function of the prompt is closer to the limit (Lehmann and Scheffe: mean and covariance are complete).

    State: r k + r + k numbers whatever the length.
    """

    unbiased: bool = False

    def state(self):
        return MomentState(centered=True, denominator=int(self.unbiased))

    def attend(self, keys, queries, values):
        if self.unbiased and keys.shape[1] < 2:
            raise ValueError("an unbiased covariance needs at least 2 tokens, received 1")
        return super().attend(keys, queries, values)

    def cost(self, length, key_dim, value_dim):
        build = 2 * length * (key_dim * value_dim + key_dim + value_dim)
        state = key_dim * value_dim + key_dim + value_dim
        return Cost(build, 2 * key_dim * value_dim + value_dim, state, 0)


@dataclass(frozen=True)
class LinearAttention(StreamingKernel):
    """Linear attention ``(1/L) sum_i v_i (k_i . query)``: neither centered nor normalized by a sum of weights.

    It has the limit of softmax attention if the tokens are centered, and only then. One pass, with the state of
    MomentAttention, from which the uncentered moment follows.
    """

    def state(self):
        return MomentState(centered=False)

    def cost(self, length, key_dim, value_dim):
        return MomentAttention().cost(length, key_dim, value_dim)._replace(query=2 * key_dim * value_dim)
