r"""Linear attention's gradient as a control variate for softmax's, on the same raw prompts of in-context regression.

With weights w_i of the tokens, m = sum w_i y_i, and e = b m - w . x_q the error of the prediction, a prompt's gradient
in (A, b) is e (b c x_q', m), where c = dm / d(A x_q) is

    softmax    w_i = p_i                         c = sum p_i (y_i - m) x_i
    linear     w_i = x_i . A x_q / L             c = (1/L) sum y_i x_i
    affine     w_i = (1 + x_i . A x_q) / L       c = (1/L) sum y_i x_i

The means of the last two are exact: the gradients of linear_risk, and of linear_risk + b^2 Var(y) / (2L) (given w the
first and third moments of the tokens vanish). So softmax - coefficient (linear - mean) has the mean of softmax's.

To leading order in 1/L a prompt's gradient is its limit plus the mean over tokens of an influence function. As
functions of one token those of linear and affine attention are parts of the chaos expansion of softmax's, so that at a
head with b Sigma A = I the best coefficient is 1. (Derived in notebook 07.)
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from .claims import Estimate
from .comparators import best_softmax
from .rates import Curve
from .regression import Head, InContextRegression, Prompts
from .step_rules import flat
from .streams import stream

KINDS = ("softmax", "linear", "affine")
NUMBERS_IN_MEMORY = 2**20
MIN_PROMPTS = 4000


def prompt_gradients(prompts: Prompts, A, b, kinds: tuple[str, ...] = KINDS) -> dict[str, np.ndarray]:
    """Gradient in (A, b) of each prompt's loss (prediction - target)^2 / 2, for each of the kinds.

    Leading axes of the prompts, of A (..., d, d) and of b (...) are broadcast. Returns shape (..., n, d^2 + 1).
    """
    x, y, query = prompts.tokens[..., :-1], prompts.tokens[..., -1], prompts.query
    L, b = x.shape[-2], np.asarray(b)[..., None]
    scores = np.matvec(x, query @ np.swapaxes(A, -1, -2))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    m = np.vecdot(p, y)
    mixed, linear = np.vecmat(np.stack([p * (y - m[..., None]), y / L]), x)
    m_linear = np.vecdot(y, scores) / L
    pairs = {"softmax": (m, mixed), "linear": (m_linear, linear), "affine": (m_linear + y.mean(-1), linear)}

    def gradient(m, c):
        error = b * m - prompts.target
        outer = ((error * b)[..., None] * c)[..., :, None] * query[..., None, :]
        return np.concatenate([outer.reshape(*error.shape, -1), (error * m)[..., None]], -1)

    return {kind: gradient(*pairs[kind]) for kind in kinds}


def mean_gradient(problem: InContextRegression, kind: str, head: Head, length) -> np.ndarray:
    """The exact mean of :func:`prompt_gradients`, shape (d^2 + 1,)."""
    gradient = flat(problem.risk_and_gradient("softmax" if kind == "softmax" else "linear", *head, length)[1])
    if kind == "affine":
        gradient[-1] += problem.task_variance * head.b * problem.token_variance / length
    return gradient


def heads_along(problem: InContextRegression, alpha: float) -> dict[str, Head]:
    """Heads to measure at: the balanced start, one on the way (b Sigma A = 0.63 I, b = 1.5), and U*."""
    on_the_way = Head(0.63 / 1.5 * np.linalg.inv(problem.covariance), 1.5)
    return {"start": problem.balanced_init(alpha), "on the way": on_the_way, "U*": problem.optimum()}


def deviations(problem: InContextRegression, head: Head, length: int, n_prompts: int, rng) -> dict[str, np.ndarray]:
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


def predicted_gains(problem: InContextRegression, head: Head, lengths, rng, n_draws: int = 2**18):
    """Variance ratios for coefficient 1 to leading order in 1/L, by kind: shape of lengths, which may be infinite.

    [ V + |softmax|^2 / L ] / [ |softmax - control|^2 / L ]: V the variance of the infinite-prompt gradient over tasks
    and queries, |.|^2 the mean square of influence functions over task, query and one token, drawn from mixtures of the
    laws tilted by the weights e^{s^2} and e^{2 scores} that make them large. NaN for a coupling of 1/2 or more, where
    they are infinite. Cost: 0.2 s for 1e5 draws at d = 5. Source: exact here (notebook 07).
    """
    lengths = np.asarray(lengths, float)
    if problem.coupling(head.A) >= 0.5:
        return {kind: np.full(lengths.shape, np.nan) for kind in KINDS[1:]}
    rows = min(n_draws, 2**16)
    parts = [_mean_squares(problem, head, rows, rng) for _ in range(-(-n_draws // rows))]
    limit, softmax, linear, affine = np.mean(parts, 0)
    limit = 0.0 if abs(limit) < 1e-12 * softmax else limit
    with np.errstate(invalid="ignore"):
        above = np.where(limit > 0, limit * lengths, 0.0) + softmax
    return {"linear": above / linear, "affine": above / affine}


def _mean_squares(problem: InContextRegression, head: Head, n: int, rng):
    """Variance of the limit's gradient; mean squares of the influence of softmax, and of softmax less its controls."""
    A, b = head
    d, S, R, tau = problem.dimension, problem.covariance, problem.query_root, problem.task_variance
    M = R @ A.T @ S @ A @ R
    white = rng.standard_normal((n, d))
    tilted = white @ np.linalg.cholesky(np.linalg.inv(np.eye(d) - 2 * M)).T
    white = np.where(rng.random((n, 1)) < 0.5, white, tilted)
    log_ratio = np.linalg.slogdet(np.eye(d) - 2 * M)[1] / 2 + np.einsum("ni,ij,nj->n", white, M, white)
    query_weight = 2 / (1 + np.exp(log_ratio))
    query, w = white @ R, np.sqrt(tau) * rng.standard_normal((n, d))
    tilt = query @ A.T
    s2 = np.einsum("ni,ij,nj->n", tilt, S, tilt)
    x = rng.standard_normal((n, d)) @ problem.covariance_root + rng.integers(0, 3, (n, 1)) * (tilt @ S)
    y = np.vecdot(x, w) + problem.noise_std * rng.standard_normal(n)
    score = np.vecdot(x, tilt)
    weight = query_weight * 3 / (1 + np.exp(score - s2 / 2) + np.exp(2 * score - 2 * s2))

    c = w @ S
    m = np.vecdot(c, tilt)
    error, r = b * m - np.vecdot(w, query), np.exp(score - s2 / 2)

    # A gradient is the pair (b v x_q', k), with square norm b^2 |v|^2 |x_q|^2 + k^2: rows (v, k) are enough.
    size = np.append(np.full(d, b), 1.0) ** 2

    def mean_square(weights, gradients):
        squares = gradients**2 * size
        return float(weights @ (squares[:, :-1].sum(1) * np.vecdot(query, query) + squares[:, -1]) / n)

    def influence(dm, dc):
        return (b * dm)[:, None] * np.column_stack([c, m]) + error[:, None] * np.column_stack([dc, dm])

    softmax = influence(r * (y - m), r[:, None] * ((x - tilt @ S) * (y - m)[:, None] - c))
    linear, mixed = y * score - m, x * y[:, None] - c
    controls = influence(linear, mixed), influence(linear + y, mixed)
    gradient = flat(problem.risk_and_gradient("infinite", *head)[1])
    limit = mean_square(query_weight, error[:, None] * np.column_stack([c, m])) - float(gradient @ gradient)
    return limit, mean_square(weight, softmax), *(mean_square(weight, softmax - value) for value in controls)


def means_along(
    problem: InContextRegression, wrong: InContextRegression, head: Head, length: int, n_prompts: int, seed: int
) -> dict[str, Estimate]:
    """Mean of the corrected gradient along the exact one, over the exact one: 1 if the control's mean is right.

    For the control's exact mean, that of the infinite prompt, and that of another covariance; coefficient 1.
    """
    exact = mean_gradient(problem, "softmax", head, length)
    deviation = deviations(problem, head, length, n_prompts, stream(seed, "means", length))
    along = 1 + (deviation["softmax"] - deviation["linear"]) @ exact / (exact @ exact)
    right = mean_gradient(problem, "linear", head, length)
    infinite = flat(problem.risk_and_gradient("infinite", *head)[1])
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
