"""The smallest whole number at which a falling function is below a target, from 1 to 1e15, in a few evaluations."""

from collections.abc import Callable
from math import inf

import numpy as np

LARGEST = 1e15  # tokens: the end of the search
FIRST_STAGE = 1e7  # it goes on from here only if it must


def smallest_length(
    error: Callable[[np.ndarray], np.ndarray], targets: np.ndarray, largest: float = LARGEST
) -> np.ndarray:
    """The smallest whole L in [1, largest] with error(L) <= target, for an error that falls with L; inf if none.

    Every round interpolates log L in the logarithm of the error, and evaluates whole lengths at a tenth, a hundredth
    and so on of the bracket on both sides of that guess, so that the number of rounds hardly depends on L.

    Args:
        error: of an array of whole lengths, positive. targets: shape (n,).

    Returns:
        Shape (n,), floats; exact up to 1e11, and within 1e-11 of itself beyond.
    """
    lengths = _ladder(1, min(largest, FIRST_STAGE))
    values = error(lengths)
    while True:
        asked = [_narrow(lengths, values, target, largest) for target in targets]
        new = np.setdiff1d(np.concatenate(asked), lengths)
        if len(new) == 0:
            break
        lengths, values = np.append(lengths, new), np.append(values, error(new))
        order = np.argsort(lengths)
        lengths, values = lengths[order], values[order]
    return np.array([_first_below(lengths, values, target) for target in targets])


def _ladder(low: float, high: float) -> np.ndarray:
    """Whole lengths from low to high, three a decade."""
    return np.unique(np.round(np.geomspace(low, high, 2 + int(3 * np.log10(high / low)))))


def _narrow(lengths: np.ndarray, values: np.ndarray, target: float, largest: float) -> np.ndarray:
    """Lengths inside the bracket of a target to evaluate next; none where it is narrow enough."""
    above = np.flatnonzero(values > target)
    if len(above) == 0 or lengths[above[-1]] == largest:
        return np.empty(0)
    if above[-1] == len(lengths) - 1:
        return _ladder(lengths[-1], largest)
    low, high = lengths[above[-1]], lengths[above[-1] + 1]
    if high - low <= max(1.0, 1e-11 * high):
        return np.empty(0)
    k = above[-1]
    near = slice(max(k - 1, 0), k + 3) if high > 1.001 * low else slice(k, k + 2)  # cubic, linear in a narrow bracket
    guess = np.exp(_interpolate(np.log(values[near]), np.log(lengths[near]), np.log(target)))
    guess = np.clip(guess, low, high)
    steps = 10.0 ** -np.arange(1, 13)
    around = np.concatenate([[0.0], np.log(high / low) * steps, -np.log(high / low) * steps])
    inside = np.append(np.round(guess * np.exp(around)), [np.floor(guess), np.ceil(guess), np.floor((low + high) / 2)])
    return np.unique(inside[(inside > low) & (inside < high)])


def _interpolate(x: np.ndarray, y: np.ndarray, at: float) -> float:
    """The value at one point of the polynomial through a few others (Lagrange)."""
    gaps = x[:, None] - x + np.eye(len(x))
    factors = np.where(np.eye(len(x), dtype=bool), 1.0, (at - x) / gaps)
    return float(y @ factors.prod(1))


def _first_below(lengths: np.ndarray, values: np.ndarray, target: float) -> float:
    above = np.flatnonzero(values > target)
    if len(above) == 0:
        return float(lengths[0])
    return float(lengths[above[-1] + 1]) if above[-1] < len(lengths) - 1 else inf
