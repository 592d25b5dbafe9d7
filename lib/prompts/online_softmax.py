"""Softmax averages of a prompt that is never held whole: blocks of tokens in, weighted moments out.

With scores x_i.a, a running maximum m and w_i = exp(x_i.a - m), the sums of w, w^2, w x and the centered
sum of w (x - mean)(x - mean)^T are kept and rescaled by exp(m_old - m_new) whenever a block raises the maximum
(online softmax). Second moments are merged by the pairwise formula

    M = M_1 + M_2 + W_1 W_2 / (W_1 + W_2) delta delta^T,   delta = mean_2 - mean_1,

so a covariance is nonnegative and keeps its digits however far the tokens are from the origin.
"""

import numpy as np


class SoftmaxAccumulator:
    """Running softmax-weighted moments of one prompt or many, for one tilt a = U z or many.

    directions is the tilt: (d,) or (q, d), the same for every prompt, or (n, q, d), its own for each of n prompts.
    `update` takes blocks of tokens (n, block, d), or (block, d) for a single prompt, of any length, in any order.
    Every result has the axes of the prompts, then those of the queries, then its own: for tokens (n, block, d) and
    directions (q, d) the mean is (n, q, d). second_moment=True also keeps weighted covariances, at O(q d^2) a token
    instead of O(q d).

    Stable for scores of any finite size. Memory: the results, and for a block n * block * (q + d) numbers. A block
    of 1 to 4 MB of tokens is fast; drawing it costs more than everything done with it.
    Raises ValueError when shapes disagree or change, or when a result is read before any token came.
    """

    def __init__(self, directions, second_moment: bool = False):
        self.directions = np.asarray(directions, dtype=float)
        if self.directions.ndim not in (1, 2, 3):
            shape = self.directions.shape
            raise ValueError(f"directions: expected shape (d,), (q, d) or (n, q, d), received {shape}")
        self._tilts = self.directions.reshape(-1, *np.atleast_2d(self.directions).shape[-2:])
        self.second_moment = second_moment
        self.count = 0

    def _start(self, prompts):
        shape = (*(prompts or (1,)), self._tilts.shape[1])
        self._prompts = prompts
        self._maximum = np.full(shape, -np.inf)
        self._total, self._squares = np.zeros(shape), np.zeros(shape)
        self._mean = np.zeros((*shape, self._tilts.shape[2]))
        self._scatter = np.zeros(self._mean.shape + self._tilts.shape[2:]) if self.second_moment else None

    def update(self, tokens) -> "SoftmaxAccumulator":
        """Take in a block of tokens; returns itself."""
        tokens = np.asarray(tokens, dtype=float)
        self._check(tokens)
        if self.count == 0:
            self._start(tokens.shape[:-2])
        blocks = tokens.reshape(-1, *tokens.shape[-2:])
        scores = self._tilts @ np.matrix_transpose(blocks)  # (n, q, block)
        maximum = np.maximum(self._maximum, scores.max(axis=-1))
        weights = np.exp(np.subtract(scores, maximum[..., None], out=scores), out=scores)
        kept = np.exp(self._maximum - maximum)  # 0 for the first block, whose old maximum is -inf
        total = weights.sum(axis=-1)
        seen = total > 0  # a block far below the maximum has weights that all underflow
        mean = np.divide(weights @ blocks, total[..., None], out=self._mean.copy(), where=seen[..., None])
        old_total = self._total * kept
        new_total = old_total + total
        share = total / new_total
        delta = mean - self._mean
        if self.second_moment:
            self._scatter *= kept[..., None, None]
            self._scatter += (share * old_total)[..., None, None] * (delta[..., :, None] * delta[..., None, :])
            self._add_scatter(blocks, np.sqrt(weights), mean)
        self._squares = self._squares * kept**2 + np.vecdot(weights, weights)
        self._mean += share[..., None] * delta
        self._total, self._maximum = new_total, maximum
        self.count += blocks.shape[1]
        return self

    def _add_scatter(self, blocks, root_weights, mean):
        for query in range(mean.shape[1]):  # one weighted copy of the block at a time
            centered = blocks - mean[:, query, None, :]
            centered *= root_weights[:, query, :, None]
            self._scatter[:, query] += np.matrix_transpose(centered) @ centered

    def _check(self, tokens):
        dim = self.directions.shape[-1]
        if tokens.ndim not in (2, 3) or tokens.shape[-1] != dim or 0 in tokens.shape:
            expected = f"(n, block, {dim}) or (block, {dim})"
            raise ValueError(f"tokens: expected shape {expected}, none of them empty, received {tokens.shape}")
        prompts = self._prompts if self.count else self.directions.shape[:-2] or tokens.shape[:-2]
        if tokens.shape[:-2] != prompts:
            expected = (*prompts, "block", dim)
            raise ValueError(f"tokens: expected shape ({', '.join(map(str, expected))}), received {tokens.shape}")

    def _result(self, compute):
        if self.count == 0:
            raise ValueError("no tokens yet: call update first")
        array = compute()
        array = array[:, 0] if self.directions.ndim == 1 else array
        return array if self._prompts else array[0]

    @property
    def mean(self) -> np.ndarray:
        """Softmax-weighted mean sum_i p_i x_i, (..., d): the prompt's attention before V."""
        return self._result(lambda: self._mean.copy())

    @property
    def covariance(self) -> np.ndarray:
        """Softmax-weighted covariance sum_i p_i (x_i - mean)(x_i - mean)^T, (..., d, d)."""
        if not self.second_moment:
            raise ValueError("covariance: needs second_moment=True from the start")
        return self._result(lambda: self._scatter / self._total[..., None, None])

    @property
    def inverse_participation(self) -> np.ndarray:
        """sum_i p_i^2, (...): 1 / L when the weights are equal, 1 when one token has all the weight."""
        return self._result(lambda: self._squares / self._total**2)

    @property
    def effective_sample_size(self) -> np.ndarray:
        """1 / sum_i p_i^2, (...): between 1 and the number of tokens."""
        return 1 / self.inverse_participation
