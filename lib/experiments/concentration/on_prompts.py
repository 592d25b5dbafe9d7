"""Errors at one query: measured on prompts against the exact curves, their slopes, and their sharp constants."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.experiments.settings import generic_head, setting_name
from lib.finite_prompt import output_error, score_gradient_error, sharp_constant, value_gradient_error
from lib.notebook.comparison import Comparison
from lib.prompts.batches import affordable_prompts
from lib.prompts.curve import Curve, average, join
from lib.prompts.errors import QUANTITIES, prompt_errors
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.tokens.covariances import covariance_matrix
from lib.tokens.families import Gaussian, Rademacher

FEWEST_PROMPTS = 24
SLOWER = 0.1  # by how much the control's rate falls short of 1


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
        tilt, the exact one without its factor e^{s^2}.
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
            found[quantity][name] = Comparison.of_curve(curve, exact[k], untilted, **columns)
    return Comparison.together({quantity: Comparison.averaged(parts) for quantity, parts in found.items()})


def slopes(*, errors: Comparison, window: tuple[float, float]) -> Comparison:
    """Slopes of measured errors in L less those of the exact ones, over the same lengths.

    Args:
        errors: what :func:`errors_from_prompts` found.
        window: shortest and longest prompt length.

    Returns:
        measured: the mean over the settings, for each quantity. control: of a rate of L^{-0.9}.
    """
    lengths = errors.table["length"].unique()
    gaps = [
        average([setting.measured.slope(lengths, window) for setting in errors[q].parts.values()]) for q in QUANTITIES
    ]
    return Comparison(measured=join(gaps), control=join(gaps).shifted(-SLOWER))


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
        A row a setting, s and quantity: covariance, dimension, s, quantity, ratio, control.
        measured: the ratio farthest from 1. control: the smallest over a constant without e^{s^2}.
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
                rows.append(row | {"ratio": ratio, "control": ratio * np.exp(s**2)})
    table = pd.DataFrame(rows)
    return Comparison(table, Intervals.exact(table["ratio"]), Estimate.exact(table["control"].min()))


def general_constant(*, dim: int, s: float, length: int, n_prompts: int, seed: int) -> Comparison:
    """L times the output error on Rademacher tokens, from prompts, over the sharp constant of a general measure.

    e^{kappa(2a) - 2 kappa(a)} tr V [ C_2a + (m_2a - m_a)(m_2a - m_a)' ] V', with m_b and C_b the tilted mean and
    covariance.

    Args:
        dim: dimension d of the tokens.
        s: standard deviation of the scores.
        length: prompt length L. n_prompts: prompts.
        seed: of the head and the prompts.

    Returns:
        measured: the ratio, pooled. control: over the Gaussian constant.
    """
    measure, gamma = Rademacher(dim), np.eye(dim)
    query, U, V = generic_head(dim, gamma, s, seed)
    a = U @ query
    shift = measure.tilted_mean(2 * a) - measure.tilted_mean(a)
    spread = measure.tilted_covariance(2 * a) + np.outer(shift, shift)
    constant = np.exp(measure.log_mgf(2 * a) - 2 * measure.log_mgf(a)) * np.trace(V @ spread @ V.T)
    errors = prompt_errors(measure, query, U, V, length, n_prompts, stream(seed, "general"))[:, 0]
    curve = Curve.from_samples([length * errors], stream(seed, "general", "bootstrap"))
    gaussian = float(sharp_constant(gamma, query, U, V))
    return Comparison(measured=curve / constant, control=curve / gaussian).pooled()


def exact_errors(covariance, query, U, V, lengths) -> np.ndarray:
    """The three exact errors, shape (3, n_lengths), in the order of QUANTITIES."""
    return np.stack(
        [
            output_error(covariance, query, U, V, lengths),
            value_gradient_error(covariance, query, U, lengths),
            score_gradient_error(covariance, query, U, V, lengths),
        ]
    )
