"""A measured number with its interval: what every comparison is judged by."""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

NORMAL = 1.96  # standard errors on either side of a mean over many prompts: 95 %


class Estimate(NamedTuple):
    """A measured number and its interval (equal ends for an exact one)."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float, numerical_error: float = 0.0) -> "Estimate":
        """A number without sampling error: its interval is its numerical error, at least its rounding."""
        value = float(value)
        width = max(float(numerical_error), abs(value) * 1e-15)
        return cls(value, value - width, value + width)

    @classmethod
    def unknown(cls) -> "Estimate":
        """What too little data leave: no number, and no interval."""
        return cls(math.nan, math.nan, math.nan)

    @classmethod
    def of_mean(cls, samples, confidence: float = 0.95) -> "Estimate":
        """The mean of a few independent samples, with Student's interval."""
        samples = np.asarray(samples, float)
        width = stats.t(len(samples) - 1).ppf((1 + confidence) / 2) * samples.std(ddof=1) / math.sqrt(len(samples))
        return cls(float(samples.mean()), float(samples.mean() - width), float(samples.mean() + width))

    @classmethod
    def of_losses(cls, losses) -> "Estimate":
        """The mean of a quantity over many independent prompts, shape (n,), with a normal 95 % interval.

        Raises:
            ValueError: for fewer than 2 prompts, which have no standard error.
        """
        losses = np.asarray(losses, float)
        if len(losses) < 2:
            raise ValueError(f"a standard error needs at least 2 prompts, received {len(losses)}")
        mean, width = float(losses.mean()), float(NORMAL * losses.std(ddof=1) / math.sqrt(len(losses)))
        return cls(mean, mean - width, mean + width)

    @classmethod
    def worst(cls, values, target: float = 1.0, numerical_error: float = 0.0) -> "Estimate":
        """All of a set of exact numbers at once: the one farthest from the target stands for them."""
        values = np.ravel(np.asarray(values, float))
        known = len(values) and np.all(np.isfinite(values))
        farthest = values[np.argmax(np.abs(values - target))] if known else math.nan
        return cls.exact(farthest, numerical_error)

    @classmethod
    def curve(cls, values, low, high, band: tuple[float, float]) -> "Estimate":
        """A whole measured curve at once, from simultaneous intervals: it lies in the band where all of them do.

        The interval is the hull of them all, or, once one of them is disjoint from the band, that one: a curve that
        leaves the band anywhere has left it.
        """
        values, low, high = (np.ravel(np.asarray(x, float)) for x in (values, low, high))
        if len(values) == 0:
            return cls.unknown()
        outside = np.maximum(low - band[1], band[0] - high)
        k = int(np.argmax(np.maximum(high - band[1], band[0] - low)))  # the one that comes closest to leaving
        if outside.max() > 0:
            k = int(np.argmax(outside))
            return cls(float(values[k]), float(low[k]), float(high[k]))
        return cls(float(values[k]), float(low.min()), float(high.max()))

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    def over(self, exact: float) -> "Estimate":
        """The estimate relative to a positive exact number."""
        return Estimate(*(x / exact for x in self))

    def estimate(self, band: tuple[float, float]) -> "Estimate":
        """Itself, whatever the band: as :meth:`lib.prompts.curve.Curve.estimate`, so that both are judged alike."""
        return self
