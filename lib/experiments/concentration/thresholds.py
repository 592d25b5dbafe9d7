"""When is a prompt long? A bound at every length, freezing below one length, and the 1/L law beyond another."""

import numpy as np
import pandas as pd
from scipy.special import digamma, gammaln, polygamma
from scipy.stats import norm

from lib.finite_prompt import expected_products, softmax_functionals
from lib.finite_prompt.weight_moments import ONE
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals

LONGEST = 1e40
ACCURACY = 1e-9  # of the exact integrals, relative, over their whole range
FROZEN_UP_TO = 0.25  # the exponent x in L = e^{x s^2} up to which the frozen limit is judged
BISECTIONS = 45


def explicit_bound(*, deviations: list[float], lengths: list[float]) -> Comparison:
    """Is eta <= B and zeta <= (1 + s^2) B, B = e^{s^2} / (L - 1 + e^{s^2}), at every length, and are they sharp?

    Args:
        deviations: standard deviations s of the scores.
        lengths: prompt lengths L, from 2 on (one token meets both with equality, whatever the scores).

    Returns:
        A row an s and length: s, length, inverse_participation, squared_error, eta_ratio, zeta_ratio (over the bounds).
        measured: 1 - the largest ratio over the lengths, for each s and both functions: negative where a bound is
        broken, positive where it is not reached. control: with B = 1 / L, of equal weights. near_miss: with L for
        L - 1.
    """
    s, length = np.meshgrid(deviations, lengths, indexing="ij")
    w = softmax_functionals(s, length)
    functions = np.stack([w.inverse_participation, w.squared_error / (1 + s**2)])
    tilted = np.exp(s**2)
    bounds = tilted / (length - 1 + tilted), 1 / length, tilted / (length + tilted)
    held, equal, longer = (Intervals.exact(1 - (functions / b).max(-1), numerical_error=ACCURACY) for b in bounds)
    columns = {"s": s, "length": length, "inverse_participation": w.inverse_participation}
    columns |= {"squared_error": w.squared_error}
    columns |= dict(zip(("eta_ratio", "zeta_ratio"), functions / bounds[0], strict=True))
    table = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    return Comparison(table, held, equal, near_miss=longer)


def identity_gap(*, deviations: list[float], lengths: list[float]) -> float:
    """The largest relative difference between zeta and (1 + s^2) eta - 6 s^2 E[ sum p^3 - (sum p^2)^2 ] on a grid."""
    s, length = np.meshgrid(deviations, lengths, indexing="ij")
    zeta, (third, square) = (
        softmax_functionals(s, length).squared_error,
        expected_products(s, length, [[(3, ONE)], [(2, ONE), (2, ONE)]]),
    )
    eta = softmax_functionals(s, length).inverse_participation
    return float(np.abs(((1 + s**2) * eta - 6 * s**2 * (third - square)) / zeta - 1).max())


def frozen_participation(s, length) -> tuple[np.ndarray, np.ndarray]:
    r"""The inverse participation of frozen weights: its leading value on L tokens, and the next term, of order 1/s^2.

    With b the largest score to expect, L P(g > b) = 1, and h the hazard rate of a normal number there, the number of
    tokens with s (g - b) > y is e^{-a y} (1 - eps y^2) to this order, a = h / s and eps = h (h - b) / (2 s^2). Then

        eta = 1 - a + (1 - a) eps { q(1, 2) - [ 2 q(2, 1) - (2 - a) q(3, 1) ] / a } + O(s^-4),
        q(k, m) = psi'(k - a) + ( psi(k - a) - [ psi(m) - log Gamma(1 - a) ] / a )^2 + psi'(m) / a^2.

    Args:
        s: standard deviation of the scores. length: L, with a < 1, that is below about e^{s^2 / 2}. They broadcast.

    Returns:
        1 - a and the next term, of the broadcast shape. Source: exact here (notebook 02).
    """
    b = norm.isf(1 / np.asarray(length, float))
    hazard = np.exp(norm.logpdf(b) - norm.logsf(b))
    a, eps = hazard / s, hazard * (hazard - b) / (2 * np.asarray(s, float) ** 2)

    def square(k, m):
        mean, variance = (digamma(m) - gammaln(1 - a)) / a, polygamma(1, m) / a**2
        return polygamma(1, k - a) + (digamma(k - a) - mean) ** 2 + variance

    return 1 - a, (1 - a) * eps * (square(1, 2) - (2 * square(2, 1) - (2 - a) * square(3, 1)) / a)


def freezing(*, deviations: list[float], exponents: list[float]) -> Comparison:
    """The inverse participation at L = e^{x s^2}, against its frozen limit (1 - sqrt(2 x))_+ and its next terms.

    With s = theta sqrt(2 ln L), theta > 1, a few tokens share the weight whatever L is, and eta tends to 1 - 1 / theta
    (the largest terms of the random energy model); below, it tends to zero.

    Args:
        deviations: standard deviations s of the scores.
        exponents: x; where L would exceed 1e40 it is left out.

    Returns:
        A row an s and x: s, length, exponent (after rounding L), inverse_participation, frozen, reached (L eta /
        e^{s^2}).
        measured: the difference from :func:`frozen_participation` at the largest s, for x up to 1/4. control: from
        zero, as if nothing froze. near_miss: without the term of order 1/s^2.
    """
    s, x = np.meshgrid(deviations, exponents, indexing="ij")
    s, x = s[x * s**2 < np.log(LONGEST)], x[x * s**2 < np.log(LONGEST)]
    length = np.maximum(np.round(np.exp(x * s**2)), 1)
    x = np.log(length) / s**2  # after rounding
    eta = softmax_functionals(s, length).inverse_participation
    columns = {"s": s, "length": length, "exponent": x, "inverse_participation": eta}
    columns |= {"frozen": np.maximum(0, 1 - np.sqrt(2 * x)), "reached": length * eta * np.exp(-(s**2))}
    table = pd.DataFrame(columns)
    cold = table[(table["s"] == max(deviations)) & (table["exponent"] <= FROZEN_UP_TO) & (table["length"] > 1)]
    eta, (leading, correction) = cold["inverse_participation"], frozen_participation(cold["s"], cold["length"])
    gaps = eta - leading - correction, eta, eta - leading
    measured, control, near_miss = (Intervals.exact(gap, numerical_error=ACCURACY) for gap in gaps)
    return Comparison(table, measured, control, near_miss=near_miss)


def two_thresholds(table: pd.DataFrame) -> pd.DataFrame:
    """The table of :func:`freezing` with its two quantities one below the other, for a figure."""
    name = table["s"].map("s = {:g}".format)
    thaw = {"what": "inverse participation η", "value": table["inverse_participation"], "limit": table["frozen"]}
    law = {"what": "L η / exp(s²)", "value": table["reached"], "limit": (table["exponent"] > 1.5).astype(float)}
    parts = [table[["s", "exponent"]].assign(name=name, **columns) for columns in (thaw, law)]
    return pd.concat(parts, ignore_index=True).sort_values(
        ["what", "s", "exponent"], kind="stable", ascending=[False, True, True]
    )


def onset_terms(s) -> np.ndarray:
    """Where L eta is half of e^{s^2}: 1, -1 / (3 s^2), (pi^2 / 9 + 4 / 15) / s^4, the terms of log L - 3 s^2 / 2.

    They are minus the median of s g + W, g standard normal, W independent with survival function (1 + e^w)^{-2}, by
    Cornish and Fisher: the cumulants of W are -1, pi^2 / 3 - 1, -2, .., -24. Shape (3, ...).
    Source: exact here (notebook 02).
    """
    x = np.asarray(s, float) ** 2
    return np.stack([np.ones_like(x), -1 / (3 * x), (np.pi**2 / 9 + 4 / 15) / x**2])


def onset_of_the_law(*, deviations: list[float], judged_from: float) -> Comparison:
    """The prompt length at which L eta reaches half of its limit e^{s^2}, against :func:`onset_terms`.

    Found by bisection on log L.

    Args:
        deviations: standard deviations s of the scores, up to 7.5.
        judged_from: the smallest s that is judged.

    Returns:
        A row an s: s, length, beyond (log(length) - 3 s^2 / 2), predicted (the sum of the terms).
        measured: beyond less predicted. control: log(length) - s^2 less the same terms, as if the law set in where
        e^{s^2} / L is 1. near_miss: without the last term.
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
    s, terms = np.asarray(deviations, float), onset_terms(deviations)
    beyond = np.log(lengths) - 1.5 * s**2
    table = pd.DataFrame({"s": s, "length": lengths, "beyond": beyond, "predicted": terms.sum(0)})
    gaps = beyond - terms.sum(0), beyond + s**2 / 2 - terms.sum(0), beyond - terms[:2].sum(0)
    measured, control, near_miss = (
        Intervals.exact(gap[s >= judged_from], numerical_error=10 * ACCURACY) for gap in gaps
    )
    return Comparison(table, measured, control, near_miss=near_miss)
