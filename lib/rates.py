r"""Errors of attention measured on prompts, with intervals from resampling the prompts.

Uncertainty comes from a bootstrap over prompts, never from the residuals of a fit, and an interval about a curve is
simultaneous: with 95 % confidence the whole curve lies inside.
"""

from dataclasses import dataclass

import numpy as np

from .claims import Estimate
from .streaming import SoftmaxAccumulator
from .token_measure import TokenMeasure

QUANTITIES = ("output", "value gradient", "score gradient")
BLOCK_NUMBERS = 2**18  # of a block of tokens: 2 MB, so that drawing and reading it stay in cache
GROUPS = 256  # prompts are resampled in at most this many groups, whose means are nearly normal
CONFIDENCE = 0.95


def prompt_errors(measure: TokenMeasure, query, U, V, length: int, n_prompts: int, rng) -> np.ndarray:
    """Squared errors of softmax attention against its infinite-prompt limit, one row a prompt.

    Args:
        measure: what the tokens are drawn from.
        query: z, shape (d,), or (n_prompts, d) for a query of its own in every prompt.
        U, V: the head. length: tokens a prompt. rng: a numpy Generator.

    Returns:
        Shape (n_prompts, 3), in the order of :data:`QUANTITIES`: |T_L - T|^2; the same with V = I;
        |V (C_p - C)|_F^2 |z|^2 with C_p and C the weighted and the tilted covariance.

    Cost: length * n_prompts * d normal draws, in blocks of bounded memory whatever the length.
    """
    query = np.broadcast_to(query, (n_prompts, measure.dim))
    tilts = query @ U.T
    errors = np.empty((n_prompts, len(QUANTITIES)))
    group = max(1, BLOCK_NUMBERS // (length * measure.dim))
    for start in range(0, n_prompts, group):
        part = slice(start, min(start + group, n_prompts))
        moments = SoftmaxAccumulator(tilts[part, None], second_moment=True)
        count = part.stop - start
        block = max(1, BLOCK_NUMBERS // (count * measure.dim))
        for done in range(0, length, block):
            moments.update(measure.sample(count, min(block, length - done), rng))
        deviation = moments.mean[:, 0] - measure.tilted_mean(tilts[part])
        spread = V @ (moments.covariance[:, 0] - measure.tilted_covariance(tilts[part]))
        errors[part, 0] = ((deviation @ V.T) ** 2).sum(-1)
        errors[part, 1] = (deviation**2).sum(-1)
        errors[part, 2] = (spread**2).sum((-2, -1)) * (query[part] ** 2).sum(-1)
    return errors


def affordable_prompts(length: int, dim: int, number_budget: int, most: int, fewest: int = 24) -> int:
    """How many prompts of this length a budget of random numbers allows, within [fewest, most]."""
    return int(np.clip(number_budget // (length * dim), fewest, most))


@dataclass(frozen=True)
class Curve:
    """A measured curve: the mean at each of n points, and means of resampled prompts, shape (n_resamples, n)."""

    mean: np.ndarray
    resampled: np.ndarray

    @classmethod
    def from_samples(cls, samples: list[np.ndarray], rng, n_resamples: int = 1000) -> "Curve":
        """From independent samples at each point: a list of n arrays, each of shape (prompts,)."""
        columns = [_resampled_means(np.asarray(x, float), rng, n_resamples) for x in samples]
        return cls(np.array([np.mean(x) for x in samples]), np.stack(columns, axis=1))

    def __truediv__(self, exact) -> "Curve":
        """The curve relative to an exact one."""
        return Curve(self.mean / exact, self.resampled / exact)

    def shifted(self, by: float) -> "Curve":
        """The curve plus a constant."""
        return Curve(self.mean + by, self.resampled + by)

    def simultaneous(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends, at every point, of a band that holds the whole curve with 95 % confidence.

        Symmetric on a log scale where the curve is positive (the largest studentized deviation over the points).
        """
        positive = bool(np.all(self.resampled > 0) and np.all(self.mean > 0))
        mean, draws = (np.log(self.mean), np.log(self.resampled)) if positive else (self.mean, self.resampled)
        deviation = np.maximum(draws.std(0), 1e-300)
        largest = np.max(np.abs(draws - mean) / deviation, axis=1, initial=0.0)
        width = np.quantile(largest, CONFIDENCE) * deviation
        ends = mean - width, mean + width
        return tuple(np.exp(end) for end in ends) if positive else ends

    def estimate(self, band: tuple[float, float]) -> Estimate:
        """The whole curve as one number to be judged: it is in the band where its simultaneous interval is."""
        return Estimate.curve(self.mean, *self.simultaneous(), band)

    def pooled(self) -> Estimate:
        """The mean over the points, which all count alike; NaN if there are none."""
        if len(self.mean) == 0:
            return Estimate(np.nan, np.nan, np.nan)
        return _percentile(self.mean.mean(), self.resampled.mean(1))

    def slope(self, length, window: tuple[float, float]) -> "Curve":
        """Least-squares slope of log(curve) against log(length) within the window, as a curve of one point.

        Of a ratio measured / exact it is the measured slope less the exact one over the same lengths. Without two
        points in the window there is no slope, and the curve is empty.
        """
        length = np.asarray(length, float)
        inside = (length >= window[0]) & (length <= window[1])
        if inside.sum() < 2:
            return Curve(self.mean[:0], self.resampled[:, :0])
        x = np.log(length[inside]) - np.log(length[inside]).mean()
        weights = x / (x @ x)
        slopes = np.log(self.resampled[:, inside]) @ weights
        return Curve(np.array([weights @ np.log(self.mean[inside])]), slopes[:, None])


def average(curves: list[Curve]) -> Curve:
    """The pointwise mean of independent curves."""
    return Curve(np.mean([c.mean for c in curves], axis=0), np.mean([c.resampled for c in curves], axis=0))


def join(curves: list[Curve]) -> Curve:
    """Several curves as one, for a statement about all of their points together."""
    return Curve(np.concatenate([c.mean for c in curves]), np.concatenate([c.resampled for c in curves], axis=1))


def _resampled_means(samples: np.ndarray, rng, n_resamples: int) -> np.ndarray:
    groups = np.array_split(samples, min(GROUPS, len(samples)))
    sums, counts = np.array([g.sum() for g in groups]), np.array([len(g) for g in groups])
    draws = rng.integers(len(groups), size=(n_resamples, len(groups)))
    return sums[draws].sum(1) / counts[draws].sum(1)


def _percentile(value: float, resampled: np.ndarray) -> Estimate:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    # A few resamples cannot place the point itself outside of its own interval.
    return Estimate(float(value), float(min(low, value)), float(max(high, value)))
