"""Experiments of notebook 02: how fast finite prompts concentrate on the limit, one function a section."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.experiments.settings import generic_head
from lib.finite_prompt import (
    local_slope,
    mean_output_error,
    output_error,
    rate_exponent,
    score_gradient_error,
    sharp_constant,
    softmax_functionals,
    value_gradient_error,
)
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve, average, join
from lib.prompts.errors import QUANTITIES, prompt_errors
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian, Rademacher


def exact_errors(covariance, query, U, V, lengths) -> np.ndarray:
    """The three exact errors, shape (3, n), in the order of QUANTITIES."""
    return np.stack(
        [
            output_error(covariance, query, U, V, lengths),
            value_gradient_error(covariance, query, U, lengths),
            score_gradient_error(covariance, query, U, V, lengths),
        ]
    )


class Measurement:
    """Errors from prompts at a fixed query, against the exact curves, for several kinds of tokens.

    Args:
        settings: (covariance, dimension) pairs.
        s: standard deviation of the scores. lengths: prompt lengths.
        budget: random numbers a setting and length, at most. coordinates: prompts times dimension, at most: the
            relative spread of a squared error falls as one over the dimension, so fewer prompts do in a larger one.

    Attributes:
        table: tidy: setting, quantity, length, prompts, measured, low, high (simultaneous over the curve), exact.
        ratios: {quantity: one curve measured / exact a setting}.
        untilted: the same against a curve whose constant forgets e^{s^2}, the control.
    """

    def __init__(
        self, settings: Sequence[tuple], s: float, lengths: list[int], budget: int, coordinates: int, seed: int
    ):
        self.lengths, tables = lengths, []
        self.ratios: dict[str, list[Curve]] = {quantity: [] for quantity in QUANTITIES}
        self.untilted: dict[str, list[Curve]] = {quantity: [] for quantity in QUANTITIES}
        for covariance, dim in settings:
            name = f"{covariance}, d = {dim}"
            gamma = covariance_matrix(covariance, dim)
            query, U, V = generic_head(dim, gamma, s, seed)
            measure, samples = Gaussian(np.zeros(dim), gamma), []
            for length in lengths:
                n_prompts = affordable_prompts(length, dim, budget, max(24, coordinates // dim))
                samples.append(prompt_errors(measure, query, U, V, length, n_prompts, stream(seed, name, length)))
            exact = exact_errors(gamma, query, U, V, lengths)
            for k, quantity in enumerate(QUANTITIES):
                curve = Curve.from_samples([x[:, k] for x in samples], stream(seed, name, "bootstrap", k))
                low, high = curve.simultaneous()
                columns = {"prompts": [len(x) for x in samples], "measured": curve.mean, "low": low, "high": high}
                columns |= {"setting": name, "quantity": quantity, "length": lengths, "exact": exact[k]}
                tables.append(pd.DataFrame(columns))
                self.ratios[quantity].append(curve / exact[k])
                self.untilted[quantity].append(curve / (exact[k] * np.exp(-(s**2))))
        self.table = pd.concat(tables, ignore_index=True)

    def across_settings(self, quantity: str, untilted: bool = False) -> Curve:
        """The mean over the settings of measured / exact, at each length (over the control's curve if untilted)."""
        return average((self.untilted if untilted else self.ratios)[quantity])

    def titled(self, window: tuple[float, float]) -> pd.DataFrame:
        """The table with a column ``title``: the quantity and the mean slope of its measured errors in the window."""
        inside = self.table["length"].between(*window)
        if self.table[inside]["length"].nunique() < 2:  # no slope
            return self.table.assign(title=self.table["quantity"])
        logs = np.log(self.table[inside].set_index(["quantity", "setting"])[["length", "measured"]])
        slopes = logs.groupby(["quantity", "setting"]).apply(lambda x: np.polyfit(x["length"], x["measured"], 1)[0])
        titles = {q: f"{q}: slope {slope:.2f}" for q, slope in slopes.groupby("quantity").mean().items()}
        return self.table.assign(title=self.table["quantity"].map(titles))

    def slope_gaps(self, window: tuple[float, float]) -> Curve:
        """Measured less exact slope over the window, the settings' mean, for each quantity."""
        return join([average([r.slope(self.lengths, window) for r in self.ratios[q]]) for q in QUANTITIES])


def sharp_constants(settings: Sequence[tuple], deviations: list[float], length: float, seed: int) -> pd.DataFrame:
    """L times the exact error at one huge length, over its sharp constant, for every setting, s and quantity.

    ``untilted`` holds the same over a constant without e^{s^2}: the control.
    """
    rows = []
    for covariance, dim in settings:
        gamma = covariance_matrix(covariance, dim)
        for s in deviations:
            query, U, V = generic_head(dim, gamma, s, seed)
            errors = exact_errors(gamma, query, U, V, [length])[:, 0]
            for quantity, error in zip(QUANTITIES, errors, strict=True):
                ratio = length * error / float(sharp_constant(gamma, query, U, V, quantity))
                row = {"covariance": str(covariance), "dimension": dim, "s": s, "quantity": quantity}
                rows.append(row | {"ratio": ratio, "untilted": ratio * np.exp(s**2)})
    return pd.DataFrame(rows)


def general_constant(dim: int, s: float, length: int, n_prompts: int, seed: int):
    """L times the output error on Rademacher tokens, from prompts, over the constant of a general measure.

    constant = M(2a) / M(a)^2 tr V [ Cov_2a + (m_2a - m_a)(m_2a - m_a)' ] V', with M the moment generating function and
    m_b, Cov_b the tilted mean and covariance. Returns the ratio as a one-point curve, and over the Gaussian constant.
    """
    measure, gamma = Rademacher(dim), np.eye(dim)
    query, U, V = generic_head(dim, gamma, s, seed)
    a = U @ query
    shift = measure.tilted_mean(2 * a) - measure.tilted_mean(a)
    spread = measure.tilted_covariance(2 * a) + np.outer(shift, shift)
    constant = np.exp(measure.log_mgf(2 * a) - 2 * measure.log_mgf(a)) * np.trace(V @ spread @ V.T)
    errors = prompt_errors(measure, query, U, V, length, n_prompts, stream(seed, "general"))[:, 0]
    curve = Curve.from_samples([length * errors], stream(seed, "general", "bootstrap"))
    return curve / constant, curve / float(sharp_constant(gamma, query, U, V))


def query_averages(inflations: dict[float, float], dim: int, lengths: list[int], budget: int, seed: int):
    """The error averaged over queries, from prompts with a query each, against the exact average.

    Args:
        inflations: for each coupling, the factor by which the variance of the queries is inflated; they are weighted
            back, so that the rare queries that dominate the average are met. A factor of 1 is plain sampling.
        dim, lengths: of isotropic tokens and queries. budget: random numbers a length.

    Returns:
        A tidy table, the curve measured / exact of all couplings joined, and the same over the exact average at a
        coupling of 0.5, the control.
    """
    gamma, V = np.eye(dim), np.eye(dim)
    tables, ratios, wrong = [], [], []
    for coupling, inflation in inflations.items():
        U, samples = np.sqrt(coupling) * np.eye(dim), []
        for length in lengths:
            rng = stream(seed, "average", f"{coupling:g}", length)
            count = affordable_prompts(length, dim, budget, most=400_000)
            queries = np.sqrt(inflation) * rng.standard_normal((count, dim))
            log_weights = (dim * np.log(inflation) - (queries**2).sum(1) * (1 - 1 / inflation)) / 2
            errors = prompt_errors(Gaussian(np.zeros(dim), gamma), queries, U, V, length, count, rng)[:, 0]
            samples.append(np.exp(log_weights) * errors)
        curve = Curve.from_samples(samples, stream(seed, "average", f"{coupling:g}", "bootstrap"))
        exact = mean_output_error(gamma, gamma, U, V, lengths).value
        low, high = curve.simultaneous()
        columns = {"length": lengths, "measured": curve.mean, "low": low, "high": high, "exact": exact}
        tables.append(pd.DataFrame({"coupling": f"λ = {coupling:g}"} | columns))
        ratios.append(curve / exact)
        wrong.append(curve / mean_output_error(gamma, gamma, np.sqrt(0.5) * np.eye(dim), V, lengths).value)
    return pd.concat(tables, ignore_index=True), join(ratios), join(wrong)


def rate_atlas(couplings: list[float], lengths: list[float]) -> pd.DataFrame:
    """Exact averages for scalar queries over huge lengths: the error, and its local slope over the decade from L.

    Columns: coupling, length, error, slope, exponent (the limit formula rho), quenched (the exponent that typical
    instead of rare prompts would give, 2 / (1 + 2 lambda) where that is below one) and the numerical error.
    """
    one, tables = np.eye(1), []
    for coupling in couplings:
        ends = np.ravel([[x, 10 * x] for x in lengths])
        average = mean_output_error(one, one, np.sqrt([[coupling]]), one, ends)
        columns = {"coupling": coupling, "length": lengths, "error": average.value[::2]}
        columns |= {"slope": local_slope(ends, average.value)[::2], "exponent": float(rate_exponent(coupling))}
        columns |= {"quenched": min(1.0, 2 / (1 + 2 * coupling))}
        columns |= {"numerical_error": (average.numerical_error / average.value)[::2]}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def bound_shape(norm: float, sigmas: list[float], rates: list[float], lengths: list[float]) -> pd.DataFrame:
    """Which (c1, c2) satisfy E <= c1 sigma^6 ln(L) / L^{c2 / sigma^2} for all sigma and all L >= 2 up to some length.

    Scalar tokens N(0, sigma^2), queries N(0, 1), V = 1, |U| = norm. For each c2 in ``rates`` and each length: the
    smallest c1 that holds up to there (``c1``). It levels off where c2 is admissible and grows without end where not.
    """
    one, rows = np.eye(1), []
    lengths = np.array(lengths, float)
    errors = {x: mean_output_error(x**2 * one, one, norm * one, one, lengths).value for x in sigmas}
    for c2 in rates:
        needed = [e * lengths ** (c2 / x**2) / (x**6 * np.log(lengths)) for x, e in errors.items()]
        c1 = np.maximum.accumulate(np.max(needed, axis=0))
        rows.append(pd.DataFrame({"c2": c2, "length": lengths, "c1": c1}))
    return pd.concat(rows, ignore_index=True)


def admissible_rate(norm: float, sigmas: list[float], length: float) -> pd.DataFrame:
    """The largest c2 that each sigma allows: sigma^2 times the local slope of its error from ``length`` on."""
    one, ends = np.eye(1), np.array([length, 10 * length])
    rows = []
    for sigma in sigmas:
        error = mean_output_error(sigma**2 * one, one, norm * one, one, ends).value
        limit = sigma**2 * float(rate_exponent((sigma * norm) ** 2))
        rows.append({"sigma": sigma, "allowed": sigma**2 * local_slope(ends, error)[0], "limit": limit})
    return pd.DataFrame(rows)


def explicit_bound(deviations: list[float], lengths: list[float]) -> pd.DataFrame:
    """L y / e^{s^2} and L v / ((1 + s^2) e^{s^2}) on a grid: at most one if the sharp constant bounds every L."""
    s, length = np.meshgrid(deviations, lengths, indexing="ij")
    w = softmax_functionals(s, length)
    columns = {
        "s": s,
        "length": length,
        "inverse_participation": w.inverse_participation,
        "squared_error": w.squared_error,
    }
    columns |= {"y_ratio": length * w.inverse_participation / np.exp(s**2)}
    columns |= {"v_ratio": length * w.squared_error / ((1 + s**2) * np.exp(s**2))}
    return pd.DataFrame({name: values.ravel() for name, values in columns.items()})


def freezing(deviations: list[float], exponents: list[float]) -> pd.DataFrame:
    """The inverse participation at L = e^{x s^2}, for x in ``exponents``, against its frozen limit (1 - sqrt(2 x))_+.

    With s = theta sqrt(2 ln L), theta > 1, a few tokens share the weight whatever L is, and y tends to 1 - 1 / theta
    (the largest terms of the random energy model); below, it tends to zero. Only lengths up to 1e40 are computed.
    """
    s, x = np.meshgrid(deviations, exponents, indexing="ij")
    s, x = s[x * s**2 < np.log(1e40)], x[x * s**2 < np.log(1e40)]
    length = np.maximum(np.round(np.exp(x * s**2)), 1)
    x = np.log(length) / s**2  # after rounding
    w = softmax_functionals(s, length)
    columns = {"s": s, "length": length, "exponent": x, "inverse_participation": w.inverse_participation}
    columns |= {
        "frozen": np.maximum(0, 1 - np.sqrt(2 * x)),
        "reached": length * w.inverse_participation * np.exp(-(s**2)),
    }
    return pd.DataFrame(columns)


def two_thresholds(table: pd.DataFrame) -> pd.DataFrame:
    """The table of :func:`freezing` with its two quantities one below the other, for a figure."""
    name = table["s"].map("s = {:g}".format)
    thaw = {"what": "inverse participation y", "value": table["inverse_participation"], "limit": table["frozen"]}
    law = {"what": "L y / exp(s²)", "value": table["reached"], "limit": (table["exponent"] > 1.5).astype(float)}
    parts = [table[["s", "exponent"]].assign(name=name, **columns) for columns in (thaw, law)]
    return pd.concat(parts, ignore_index=True).sort_values(
        ["what", "s", "exponent"], kind="stable", ascending=[False, True, True]
    )


def onset_of_the_law(deviations: list[float]) -> pd.DataFrame:
    """The prompt length at which L y reaches half of its limit e^{s^2}, and how it grows: d log(length) / d s^2.

    Found by bisection on log L of the exact inverse participation; the slope is taken between neighboring s.
    """
    lengths = []
    for s in deviations:
        low, high = 0.0, np.log(1e40)
        for _ in range(45):
            middle = (low + high) / 2
            length = np.round(np.exp(middle))
            reached = length * softmax_functionals(s, length).inverse_participation > 0.5 * np.exp(s**2)
            low, high = (low, middle) if reached else (middle, high)
        lengths.append(np.round(np.exp(high)))
    squared = np.asarray(deviations) ** 2
    return pd.DataFrame({"s": deviations, "length": lengths, "growth": np.gradient(np.log(lengths), squared)})
