"""Errors at one query: measured on prompts against the exact curves, their slopes, and their sharp constants."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.experiments.settings import generic_head, setting_name, unit_measures
from lib.finite_prompt import output_error, score_gradient_error, sharp_constant, value_gradient_error
from lib.notebook.comparison import Comparison
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve, average, join
from lib.prompts.errors import QUANTITIES, prompt_errors
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian

FEWEST_PROMPTS = 24
UNSQUARED = -0.5  # the slope of an error that is not squared
LAW = -1.0  # that of a squared one, once the 1/L law holds


def errors_from_prompts(
    *,
    settings: Sequence[tuple],
    s: float,
    lengths: list[int],
    number_budget: int,
    coordinates: int,
    seed: int,
) -> Comparison:
    """Errors from prompts at a fixed query, against the exact curves, for several kinds of tokens.

    Args:
        settings: pairs of a covariance and a dimension; each has one random query and head.
        s: standard deviation of the scores.
        lengths: prompt lengths L.
        number_budget: random numbers a setting and length, at most.
        coordinates: prompts times dimension, at most: the relative spread of a squared error falls as one over the
            dimension, so that fewer prompts do in a larger one.
        seed: of heads and prompts.

    Returns:
        A part for each of QUANTITIES, and in it a part for each setting. A row a quantity, setting and length:
        quantity, setting, length, prompts, measured, low, high (simultaneous over a curve), exact.
        measured: the mean over the settings of measured / exact, at each length. control: over a curve that forgets the
        tilt, the exact one without its factor e^{s^2}. near_miss: over the 1/L law, the sharp constant over L.
    """
    found: dict[str, dict[str, Comparison]] = {quantity: {} for quantity in QUANTITIES}
    for covariance, dim in settings:
        name, gamma = setting_name(covariance, dim), covariance_matrix(covariance, dim)
        query, U, V = generic_head(dim, gamma, s, seed)
        samples, most = [], max(FEWEST_PROMPTS, coordinates // dim)
        for length in lengths:
            n_prompts, rng = affordable_prompts(length, dim, number_budget, most), stream(seed, name, length)
            samples.append(prompt_errors(Gaussian.centered(gamma), query, U, V, length, n_prompts, rng))
        exact = exact_errors(gamma, query, U, V, lengths)
        for k, quantity in enumerate(QUANTITIES):
            curve = Curve.from_samples([x[:, k] for x in samples], stream(seed, name, "bootstrap", k))
            columns = {"quantity": quantity, "setting": name, "length": lengths, "prompts": [len(x) for x in samples]}
            untilted = exact[k] * np.exp(-(s**2))
            law = sharp_constant(gamma, query, U, V, quantity) / np.array(lengths)
            found[quantity][name] = Comparison.of_curve(curve, exact[k], untilted, law, **columns)
    return Comparison.together({quantity: Comparison.averaged(parts) for quantity, parts in found.items()})


def slopes(*, errors: Comparison, window: tuple[float, float]) -> Comparison:
    """Slopes of measured errors in L less those of the exact ones, over the same lengths.

    Args:
        errors: what :func:`errors_from_prompts` found.
        window: shortest and longest prompt length.

    Returns:
        A row a quantity: quantity, measured and exact slope, means over the settings. Without two lengths in the window
        there is no slope and no row.
        measured: the difference, for each quantity. control: from the slope -1/2 of an error that is not squared.
        near_miss: from the slope -1 that holds at long prompts.
    """
    lengths, rows, gaps, slopes_ = errors.table["length"].unique(), [], [], []
    for quantity in QUANTITIES:
        parts = errors[quantity].parts.values()
        gaps.append(average([part.measured.slope(lengths, window) for part in parts]))
        exact = np.mean([_slope(lengths, part.table["exact"], window) for part in parts])
        slopes_.append(gaps[-1].shifted(exact))
        rows += [{"quantity": quantity, "measured": m, "exact": exact} for m in slopes_[-1].mean]
    table = pd.DataFrame(rows, columns=["quantity", "measured", "exact"])
    measured = join(slopes_)
    return Comparison(table, join(gaps), measured.shifted(-UNSQUARED), near_miss=measured.shifted(-LAW))


def _slope(lengths, values, window: tuple[float, float]) -> float:
    inside = (lengths >= window[0]) & (lengths <= window[1])
    return np.polyfit(np.log(lengths[inside]), np.log(np.asarray(values)[inside]), 1)[0] if inside.sum() > 1 else np.nan


def titled(table: pd.DataFrame, window: tuple[float, float]) -> pd.DataFrame:
    """The table of errors with a column ``title``: the quantity, and the mean slope of its measured errors."""
    inside = table["length"].between(*window)
    if table[inside]["length"].nunique() < 2:  # no slope
        return table.assign(title=table["quantity"])
    logs = np.log(table[inside].set_index(["quantity", "setting"])[["length", "measured"]])
    fitted = logs.groupby(["quantity", "setting"]).apply(lambda x: np.polyfit(x["length"], x["measured"], 1)[0])
    titles = {q: f"{q}: slope {slope:.2f}" for q, slope in fitted.groupby("quantity").mean().items()}
    return table.assign(title=table["quantity"].map(titles))


def sharp_constants(*, settings: Sequence[tuple], deviations: list[float], length: float, seed: int) -> Comparison:
    """L times the exact error at one huge length, over its sharp constant.

    Args:
        settings: pairs of a covariance and a dimension.
        deviations: standard deviations s of the scores.
        length: prompt length L.
        seed: of the heads.

    Returns:
        A row a setting, s and quantity: covariance, dimension, s, quantity, ratio, untilted, round (over the constants
        of the control and the near miss).
        measured: the ratios. control: the smallest over a constant without e^{s^2}. near_miss: the smallest over
        e^{s^2} times the constant of a query that does not score, as if the errors were alike in all directions.
    """
    rows = []
    for covariance, dim in settings:
        gamma = covariance_matrix(covariance, dim)
        for s in deviations:
            query, U, V = generic_head(dim, gamma, s, seed)
            errors = exact_errors(gamma, query, U, V, [length])[:, 0]
            for quantity, error in zip(QUANTITIES, errors, strict=True):
                constant, silent = (float(sharp_constant(gamma, query, W, V, quantity)) for W in (U, 0 * U))
                row = {"covariance": str(covariance), "dimension": dim, "s": s, "quantity": quantity}
                row |= {"ratio": length * error / constant, "untilted": length * error * np.exp(s**2) / constant}
                rows.append(row | {"round": length * error / (silent * np.exp(s**2))})
    table = pd.DataFrame(rows)
    control, near_miss = Estimate.exact(table["untilted"].min()), Estimate.exact(table["round"].min())
    return Comparison(table, Intervals.exact(table["ratio"], numerical_error=1e-9), control, near_miss=near_miss)


def general_constant(*, dim: int, s: float, length: int, heads: int, number_budget: int, seed: int) -> Comparison:
    """L times the output error on tokens that are not Gaussian, from prompts, over the constant of a general measure.

    e^{kappa(2a) - 2 kappa(a)} tr V [ C_2a + (m_2a - m_a)(m_2a - m_a)' ] V', with m_b and C_b the tilted mean and
    covariance.

    Args:
        dim: dimension d of the tokens.
        s: standard deviation of the scores.
        length: prompt length L. heads: random queries and heads. number_budget: random numbers a measure.
        seed: of the heads and the prompts.

    Returns:
        A row a head and measure, the four with mean 0 and covariance I that are not Gaussian: head, measure, measured
        (L times the error), low, high, exact (the constant).
        measured: the ratio of each measure, a mean over the heads. control: over the Gaussian constant. near_miss: over
        the constant without the shift m_2a - m_a.
    """
    gamma, parts = np.eye(dim), {}
    measures = {name: measure for name, measure in unit_measures(dim).items() if name != "Gaussian"}
    n_prompts = affordable_prompts(length, dim, number_budget // heads, most=10**6)
    for head, key in enumerate(stream(seed, "general", "heads").integers(2**31, size=heads)):
        query, U, V = generic_head(dim, gamma, s, int(key))
        constants = np.array([_constants(measure, U @ query, V) for measure in measures.values()]).T
        samples = [
            length * prompt_errors(measure, query, U, V, length, n_prompts, stream(seed, "general", name, head))[:, 0]
            for name, measure in measures.items()
        ]
        curve = Curve.from_samples(samples, stream(seed, "general", "bootstrap", head))
        gaussian = float(sharp_constant(gamma, query, U, V))
        columns = {"head": head, "measure": list(measures)}
        parts[f"head {head}"] = Comparison.of_curve(curve, constants[0], gaussian, constants[1], **columns)
    return Comparison.averaged(parts)


def _constants(measure, a, V) -> tuple[float, float]:
    """The sharp constant of a measure at a tilt, and the same without the shift of the tilted mean."""
    shift, tilted = measure.tilted_mean(2 * a) - measure.tilted_mean(a), measure.tilted_covariance(2 * a)
    growth = np.exp(measure.log_mgf(2 * a) - 2 * measure.log_mgf(a))
    still = growth * np.trace(V @ tilted @ V.T)
    return still + growth * ((V @ shift) ** 2).sum(), still


def exact_errors(covariance, query, U, V, lengths) -> np.ndarray:
    """The three exact errors, shape (3, n_lengths), in the order of QUANTITIES."""
    return np.stack(
        [
            output_error(covariance, query, U, V, lengths),
            value_gradient_error(covariance, query, U, lengths),
            score_gradient_error(covariance, query, U, V, lengths),
        ]
    )
