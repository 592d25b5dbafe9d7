"""When is a prompt long? A bound at every length, freezing below one length, and the 1/L law beyond another."""

import numpy as np
import pandas as pd

from lib.finite_prompt import softmax_functionals
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals

LONGEST = 1e40
FROZEN_UP_TO = 0.25  # the exponent x in L = e^{x s^2} up to which the frozen limit is judged
CONTROL_SHARE = 0.9  # of the sharp constants
BISECTIONS = 45


def explicit_bound(*, deviations: list[float], lengths: list[float]) -> Comparison:
    """Do the sharp constants bound every length? L eta / e^{s^2} and L zeta / ((1 + s^2) e^{s^2}) on a grid.

    Args:
        deviations: standard deviations s of the scores.
        lengths: prompt lengths L.

    Returns:
        A row an s and length: s, length, inverse_participation, squared_error, eta_ratio, zeta_ratio.
        measured: the largest ratio. control: over nine tenths of the constants.
    """
    s, length = np.meshgrid(deviations, lengths, indexing="ij")
    w = softmax_functionals(s, length)
    columns = {"s": s, "length": length, "inverse_participation": w.inverse_participation}
    columns |= {"squared_error": w.squared_error}
    columns |= {"eta_ratio": length * w.inverse_participation / np.exp(s**2)}
    columns |= {"zeta_ratio": length * w.squared_error / ((1 + s**2) * np.exp(s**2))}
    table = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    largest = table[["eta_ratio", "zeta_ratio"]].max().max()
    return Comparison(table, Estimate.exact(largest, numerical_error=1e-11), Estimate.exact(largest / CONTROL_SHARE))


def freezing(*, deviations: list[float], exponents: list[float]) -> Comparison:
    """The inverse participation at L = e^{x s^2}, against its frozen limit (1 - sqrt(2 x))_+.

    With s = theta sqrt(2 ln L), theta > 1, a few tokens share the weight whatever L is, and eta tends to 1 - 1 / theta
    (the largest terms of the random energy model); below, it tends to zero.

    Args:
        deviations: standard deviations s of the scores.
        exponents: x; where L would exceed 1e40 it is left out.

    Returns:
        A row an s and x: s, length, exponent (after rounding L), inverse_participation, frozen, reached (L eta /
        e^{s^2}).
        measured: the difference from the frozen limit at the largest s, for x up to 1/4, at its worst.
        control: from zero, as if nothing froze.
    """
    s, x = np.meshgrid(deviations, exponents, indexing="ij")
    s, x = s[x * s**2 < np.log(LONGEST)], x[x * s**2 < np.log(LONGEST)]
    length = np.maximum(np.round(np.exp(x * s**2)), 1)
    x = np.log(length) / s**2  # after rounding
    eta = softmax_functionals(s, length).inverse_participation
    columns = {"s": s, "length": length, "exponent": x, "inverse_participation": eta}
    columns |= {"frozen": np.maximum(0, 1 - np.sqrt(2 * x)), "reached": length * eta * np.exp(-(s**2))}
    table = pd.DataFrame(columns)
    cold = table[(table["s"] == max(deviations)) & (table["exponent"] <= FROZEN_UP_TO)]
    gaps = cold["inverse_participation"] - cold["frozen"], cold["inverse_participation"]
    return Comparison(table, *(Intervals.exact(gap) for gap in gaps))


def two_thresholds(table: pd.DataFrame) -> pd.DataFrame:
    """The table of :func:`freezing` with its two quantities one below the other, for a figure."""
    name = table["s"].map("s = {:g}".format)
    thaw = {"what": "inverse participation η", "value": table["inverse_participation"], "limit": table["frozen"]}
    law = {"what": "L η / exp(s²)", "value": table["reached"], "limit": (table["exponent"] > 1.5).astype(float)}
    parts = [table[["s", "exponent"]].assign(name=name, **columns) for columns in (thaw, law)]
    return pd.concat(parts, ignore_index=True).sort_values(
        ["what", "s", "exponent"], kind="stable", ascending=[False, True, True]
    )


def onset_of_the_law(*, deviations: list[float], numerical_error: float = 1e-3) -> Comparison:
    """The prompt length at which L eta reaches half of its limit e^{s^2}, and how it grows: d log(length) / d s^2.

    Found by bisection on log L; the slope is taken between neighboring s.

    Args:
        deviations: standard deviations s of the scores, increasing.
        numerical_error: of the growth, from rounding L and from differences.

    Returns:
        A row an s: s, length, growth. measured: the growth at the largest s. control: at the smallest.
    """
    lengths = []
    for s in deviations:
        low, high = 0.0, np.log(LONGEST)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            length = np.round(np.exp(middle))
            reached = length * softmax_functionals(s, length).inverse_participation > 0.5 * np.exp(s**2)
            low, high = (low, middle) if reached else (middle, high)
        lengths.append(np.round(np.exp(high)))
    growth = np.gradient(np.log(lengths), np.asarray(deviations) ** 2)
    table = pd.DataFrame({"s": deviations, "length": lengths, "growth": growth})
    return Comparison(table, *(Estimate.exact(growth[k], numerical_error) for k in (-1, 0)))
