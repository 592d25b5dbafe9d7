"""Curves measured on prompts, with simultaneous intervals from resampling the prompts."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from lib.prompts.estimate import Estimate, Intervals

GROUPS = 256  # prompts are resampled in at most this many groups, whose means are nearly normal
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Curve:
    """A measured curve: the mean at each of n points, and means of resampled prompts, shape (n_resamples, n)."""

    mean: np.ndarray
    resampled: np.ndarray

    @classmethod
    def from_samples(cls, samples: list[np.ndarray], rng, n_resamples: int = 1000) -> "Curve":
        """From independent samples at each point: a list of n arrays, each of shape (prompts,)."""
        return cls.of_ratios([(x, np.ones(len(x))) for x in samples], rng, n_resamples)

    @classmethod
    def of_ratios(cls, pairs: list[tuple[np.ndarray, np.ndarray]], rng, n_resamples: int = 1000) -> "Curve":
        """Ratios of two means over the same prompts, as of a variance to another; independent at each point.

        Resamples are spread by Student's factor of few or unequal groups, see :func:`_spread`. Seen coverage of ratios
        of variances with a common log-normal factor, at 4096 prompts: 0.95 to 0.97; of gradients' variances in notebook
        07, where single prompts may carry a fifth of a variance, 0.88 to 0.98 at 65,536 prompts (0.80 at the trained
        head of 100 tokens) and 0.83 to 0.98 at 4096.

        Args:
            pairs: a list of n pairs, above and below, of shape (prompts,) each.
        """
        columns = [_resampled_ratios(*(np.asarray(x, float) for x in pair), rng, n_resamples) for pair in pairs]
        return cls(np.array([np.mean(x) / np.mean(y) for x, y in pairs]), np.stack(columns, axis=1))

    def __truediv__(self, other) -> "Curve":
        """The curve relative to an exact one, or to a measured one whose prompts were resampled by the same draws."""
        mean, resampled = (other.mean, other.resampled) if isinstance(other, Curve) else (other, other)
        return Curve(self.mean / mean, self.resampled / resampled)

    def at(self, chosen) -> "Curve":
        """The curve at some of its points: a slice, or a mask of shape (n,)."""
        return Curve(self.mean[chosen], self.resampled[:, chosen])

    def columns(self) -> dict[str, np.ndarray]:
        """Columns of a table: ``measured``, and the ends ``low`` and ``high`` of its simultaneous band."""
        low, high = self.simultaneous()
        return {"measured": self.mean, "low": low, "high": high}

    def shifted(self, by: float) -> "Curve":
        """The curve plus a constant."""
        return Curve(self.mean + by, self.resampled + by)

    def simultaneous(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends, at every point, of a band that holds the whole curve with 95 % confidence.

        Symmetric on a log scale where the curve is positive (the largest studentized deviation over the points).
        Seen at 300 prompts and more: 0.94 to 0.97 for exponential, chi-square and log-normal losses, 0.92 to 0.95 at
        one point of squared Student-t (df 4 and 5); of six such points together, whose variances are hardly there, 0.82
        to 0.92. See tests/prompts/test_coverage.py.
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
        return self.intervals().estimate(band)

    def intervals(self) -> Intervals:
        """Every point with its end of the simultaneous band."""
        return Intervals(self.mean, *self.simultaneous())

    def pooled(self) -> Estimate:
        """The mean over the points, which all count alike; NaN if there are none. Seen coverage: 0.92 to 0.98."""
        if len(self.mean) == 0:
            return Estimate.unknown()
        return replace(_percentile(self.mean.mean(), self.resampled.mean(1)), cases=len(self.mean))

    def slope(self, length, window: tuple[float, float]) -> "Curve":
        """Least-squares slope of log(curve) against log(length) within the window, as a curve of one point.

        Of a ratio measured / exact it is the measured slope less the exact one over the same lengths. Without two
        points in the window there is no slope, and the curve is empty.
        """
        length = np.asarray(length, float)
        inside = (length >= window[0]) & (length <= window[1])
        if inside.sum() < 2:
            return self.at(slice(0))
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


def _resampled_ratios(above: np.ndarray, below: np.ndarray, rng, n_resamples: int) -> np.ndarray:
    groups = min(GROUPS, len(above))
    starts = np.arange(groups) * (len(above) // groups) + np.minimum(np.arange(groups), len(above) % groups)
    a, b = (np.add.reduceat(x, starts) for x in (above, below))  # the sizes of groups differ by one at most
    draws = rng.integers(groups, size=(n_resamples, groups))
    ratio, resampled = a.sum() / b.sum(), a[draws].sum(1) / b[draws].sum(1)
    spread = _spread(a - ratio * b)
    if ratio > 0 and np.all(resampled > 0):
        return ratio * (resampled / ratio) ** spread
    return ratio + spread * (resampled - ratio)


def _spread(influence: np.ndarray) -> float:
    """By how much intervals from groups must be wider than a normal law's, from what each group adds to the estimate.

    Student's quantile over the normal one, and the root of g / (g - 1) by which resampling g groups underestimates a
    variance. The degrees of freedom are those of a variance estimated from such groups, 2 / sum q^2 for their shares q
    of it (Satterthwaite), halved: with heavy tails a few groups carry it, and the largest are yet unseen.
    """
    groups, squares = len(influence), influence**2
    if groups < 2 or not squares.sum() > 0:
        return 1.0
    shares = squares / squares.sum()
    freedom = 1 / float(shares @ shares) + 0.5
    tail = (1 + CONFIDENCE) / 2
    return float(stats.t.ppf(tail, freedom) / stats.norm.ppf(tail) * np.sqrt(groups / (groups - 1)))


def _percentile(value: float, resampled: np.ndarray) -> Estimate:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    # A few resamples cannot place the point itself outside of its own interval.
    return Estimate(float(value), float(min(low, value)), float(max(high, value)))
