"""Experiments of notebook 07: the variance of gradients."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.prompts.curve import Curve
from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.control_variate import KINDS, mean_gradient, predicted_gains, prompt_gradients
from lib.regression.head import BlockHead
from lib.regression.task import InContextRegression

NUMBERS_IN_MEMORY = 2**20


MIN_PROMPTS = 4000


def heads_along(problem: InContextRegression, alpha: float) -> dict[str, BlockHead]:
    """Heads to measure at: the balanced start, one on the way (b Sigma A = 0.63 I, b = 1.5), and U*."""
    on_the_way = BlockHead(0.63 / 1.5 * np.linalg.inv(problem.covariance), 1.5)
    return {"start": problem.balanced_init(alpha), "on the way": on_the_way, "U*": problem.optimum()}


def deviations(
    problem: InContextRegression, head: BlockHead, length: int, n_prompts: int, rng
) -> dict[str, np.ndarray]:
    """Gradients of raw prompts less their exact means, by kind, each of shape (n_prompts, d^2 + 1).

    Cost: n_prompts * length * (d + 1) random numbers, in blocks of bounded memory.
    """
    rows = max(1, NUMBERS_IN_MEMORY // (length * (problem.dimension + 1)))
    blocks = [
        prompt_gradients(problem.sample(min(rows, n_prompts - k), length, rng), *head)
        for k in range(0, n_prompts, rows)
    ]
    means = {kind: mean_gradient(problem, kind, head, length) for kind in KINDS}
    return {kind: np.concatenate([block[kind] for block in blocks]) - means[kind] for kind in KINDS}


def best_coefficient(of: np.ndarray, control: np.ndarray) -> float:
    """The one number c that makes the total variance of ``of - c control`` smallest, both centered."""
    return float(np.vdot(of, control) / np.vdot(control, control))


class Gain(NamedTuple):
    """How many times a control variate divides the total variance of the gradient: at several lengths, as curves.

    Attributes: by (kind, coefficient), the coefficient "1", "best" or "1/2".
    """

    curves: dict[tuple[str, str], Curve]
    table: pd.DataFrame


def gains(problem: InContextRegression, name: str, head, lengths: list[int], budget: int, seed: int) -> Gain:
    """Variance ratios at a head, or with ``head`` None at the best softmax head of each length.

    Columns: head, length, prompts, control (kind), coefficient, gain, low, high (simultaneous over the lengths),
    value (of the coefficient), predicted (leading order, for coefficient 1). Resampled are groups of prompts, the same
    for both variances.
    """
    sizes: dict[tuple[str, str], list] = {}
    rows = []
    heads = [head or best_softmax(problem, length) for length in lengths]
    if head:
        predictions = predicted_gains(problem, head, lengths, stream(seed, "influence", name))
        expected = [{kind: values[k] for kind, values in predictions.items()} for k in range(len(lengths))]
    else:
        expected = [
            predicted_gains(problem, here, length, stream(seed, "influence", name), 2**16)
            for here, length in zip(heads, lengths, strict=True)
        ]
    for here, length, predicted in zip(heads, lengths, expected, strict=True):
        count = int(np.clip(budget // (length * (problem.dimension + 1)), MIN_PROMPTS, 100_000))
        deviation = deviations(problem, here, length, count, stream(seed, "gains", name, length))
        own = (deviation["softmax"] ** 2).sum(1)
        for kind in KINDS[1:]:
            best = best_coefficient(deviation["softmax"], deviation[kind])
            for label, coefficient in {"1": 1.0, "best": best, "1/2": 0.5}.items():
                left = ((deviation["softmax"] - coefficient * deviation[kind]) ** 2).sum(1)
                sizes.setdefault((kind, label), []).append((own, left))
                row = {"head": name, "length": length, "prompts": count, "control": kind, "coefficient": label}
                row["value"] = coefficient
                rows.append(row | {"predicted": predicted[kind] if label == "1" else np.nan})
    curves = {}
    table = pd.DataFrame(rows)
    for (kind, label), pairs in sizes.items():
        # the same stream, so the same groups of prompts, in the numerator and in the denominator
        above, below = (
            Curve.from_samples([pair[k] for pair in pairs], stream(seed, "gains bootstrap", name)) for k in (0, 1)
        )
        curves[kind, label] = Curve(above.mean / below.mean, above.resampled / below.resampled)
        where = (table["control"] == kind) & (table["coefficient"] == label)
        table.loc[where, "gain"] = curves[kind, label].mean
        table.loc[where, "low"], table.loc[where, "high"] = curves[kind, label].simultaneous()
    return Gain(curves, table)


def means_along(
    problem: InContextRegression, wrong: InContextRegression, head: BlockHead, length: int, n_prompts: int, seed: int
) -> dict[str, Estimate]:
    """Mean of the corrected gradient along the exact one, over the exact one: 1 if the control's mean is right.

    For the control's exact mean, that of the infinite prompt, and that of another covariance; coefficient 1.
    """
    exact = mean_gradient(problem, "softmax", head, length)
    deviation = deviations(problem, head, length, n_prompts, stream(seed, "means", length))
    along = 1 + (deviation["softmax"] - deviation["linear"]) @ exact / (exact @ exact)
    right = mean_gradient(problem, "linear", head, length)
    infinite = problem.risk_and_gradient("infinite", *head)[1].flat()
    used = {
        "exact": right,
        "infinite prompt": infinite,
        "other covariance": mean_gradient(wrong, "linear", head, length),
    }
    shifts = {name: (mean - right) @ exact / (exact @ exact) for name, mean in used.items()}
    return {name: Estimate.of_mean(along + shift) for name, shift in shifts.items()}


def points(gain: Gain, kind: str, coefficient: str, lengths: list[int]) -> Curve:
    """The part of a curve of gains at some of the lengths."""
    curve, measured = gain.curves[kind, coefficient], list(dict.fromkeys(gain.table["length"]))
    chosen = [measured.index(length) for length in lengths]
    return Curve(curve.mean[chosen], curve.resampled[:, chosen])


def left_over(gain: Gain, lengths: list[int]) -> Curve:
    """Variance left by the linear control over that left by the affine one, coefficient 1, on the same prompts."""
    affine, linear = (points(gain, kind, "1", lengths) for kind in ("affine", "linear"))
    return Curve(affine.mean / linear.mean, affine.resampled / linear.resampled)


def predictions(gain: Gain, kind: str, lengths: list[int]) -> np.ndarray:
    """The leading-order gains at some of the lengths, coefficient 1."""
    rows = gain.table[(gain.table["control"] == kind) & (gain.table["coefficient"] == "1")].set_index("length")
    return rows.loc[lengths, "predicted"].to_numpy()
