"""The linear gradient as control variate: is its mean right, and by how much does it divide the gradient's variance?"""

import numpy as np
import pandas as pd

from lib.notebook.comparison import Comparison
from lib.prompts.batches import batches
from lib.prompts.curve import Curve
from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.control_variate import KINDS, mean_gradient, predicted_gains, prompt_gradients
from lib.regression.head import BlockHead
from lib.regression.step_rules import long_prompt
from lib.regression.task import InContextRegression

FEWEST_PROMPTS, MOST_PROMPTS = 4000, 100_000
ON_THE_WAY = 0.63, 1.5  # the share of the inverse that is learned, and b
LONG_FROM = 30  # tokens from which on the leading order is held against prompts
TRAINED_FROM = 100  # tokens from which on it is at trained heads, whose coupling is near one half before
GOLDEN = (np.sqrt(5) - 1) / 2  # s^2 where the bound of the gain on the valley is attained
BOUND = 1 / (1 - 2 * GOLDEN * np.exp(-GOLDEN) / (1 + GOLDEN))  # of the linear control's gain there, to leading order
STREAM_NAMES = {"(A*, b*)": "U*"}  # the name of a stream does not change with the notation
TRAINED_DRAWS = 2**17  # of the predicted gain at each trained head


def heads_along(problem: InContextRegression, alpha: float) -> dict[str, BlockHead | None]:
    """Heads to measure at: the balanced start, one on the way, (A*, b*), and None for the best head of each length."""
    share, b = ON_THE_WAY
    on_the_way = BlockHead(share / b * np.linalg.inv(problem.covariance), b)
    start = problem.balanced_init(alpha)
    return {"start": start, "on the way": on_the_way, "(A*, b*)": problem.optimum(), "trained": None}


def means_along(
    *,
    problem: InContextRegression,
    other: InContextRegression,
    head: BlockHead,
    length: int,
    n_prompts: int,
    seed: int,
) -> Comparison:
    """Mean of the corrected gradient along the exact one, over the exact one: 1 if the control's mean is right.

    Args:
        problem: the task.
        other: one with another covariance.
        head: (A, b).
        length: prompt length L.
        n_prompts: raw prompts.
        seed: of these.

    Returns:
        A row a mean that is used: used ("exact", "one token less", "infinite prompt", "other covariance"), mean, low,
        high.
        measured: with the exact mean. near miss: with that of one token less. control: of the infinite prompt.
    """
    exact = mean_gradient(problem, "softmax", head, length)
    deviation = deviations(problem, head, length, n_prompts, stream(seed, "means", length))
    along = 1 + (deviation["softmax"] - deviation["linear"]) @ exact / (exact @ exact)
    right = mean_gradient(problem, "linear", head, length)
    used = {
        "exact": right,
        "one token less": mean_gradient(problem, "linear", head, length - 1),
        "infinite prompt": problem.risk_and_gradient("infinite", *head)[1].flat(),
        "other covariance": mean_gradient(other, "linear", head, length),
    }
    found = {name: Estimate.of_mean(along + (mean - right) @ exact / (exact @ exact)) for name, mean in used.items()}
    table = pd.DataFrame([{"used": k, "mean": x.value, "low": x.low, "high": x.high} for k, x in found.items()])
    return Comparison(table, found["exact"], found["infinite prompt"], near_miss=found["one token less"])


def deviations(
    problem: InContextRegression, head: BlockHead, length: int, n_prompts: int, rng
) -> dict[str, np.ndarray]:
    """Gradients of raw prompts less their exact means, by kind, each of shape (n_prompts, d^2 + 1).

    Cost: n_prompts * length * (d + 1) random numbers, in batches of bounded memory.
    """
    drawn = [
        prompt_gradients(problem.sample(part.stop - part.start, length, rng), *head)
        for part in batches(n_prompts, length * (problem.dimension + 1))
    ]
    means = {kind: mean_gradient(problem, kind, head, length) for kind in KINDS}
    return {kind: np.concatenate([batch[kind] for batch in drawn]) - means[kind] for kind in KINDS}


def best_coefficient(of: np.ndarray, control: np.ndarray) -> float:
    """The one number c that makes the total variance of ``of - c control`` smallest, both centered."""
    return float(np.vdot(of, control) / np.vdot(control, control))


def gains(
    *,
    problem: InContextRegression,
    heads: dict[str, BlockHead | None],
    lengths: list[int],
    number_budget: int,
    seed: int,
) -> Comparison:
    """How many times a control variate divides the total variance of the gradient, from prompts, and as predicted.

    Args:
        problem: the task.
        heads: by name, "start" and "trained" among them; None is the best softmax head of each length.
        lengths: prompt lengths L, increasing.
        number_budget: random numbers a head and length.
        seed: of prompts and resamples.

    Returns:
        A row a head, length, control ("linear" or "affine") and coefficient ("1", "best", "0.9" or "1/2"): head,
        length, prompts, control, coefficient, value (of the coefficient), predicted (to leading order, for coefficient
        1), gain, low, high (simultaneous over the lengths). Parts, of the linear control with coefficient 1:
        "start": gain over predicted, pooled from LONG_FROM tokens on; "growth": the slope of that ratio in L (near miss
        of both: coefficient 0.9, control: 1/2); "trained": gain over predicted at trained heads, pooled from
        TRAINED_FROM tokens on (near miss: over what is predicted with a uniform term, control: the gain at the start);
        "short": the gain at the shortest prompt (near miss: coefficient 1/2, control: the best one); "affine": variance
        left without the uniform term over that left with it, over predicted, pooled from TRAINED_FROM tokens on (near
        miss: over what is predicted of an infinite prompt, control: what is measured at the shortest prompt).
    """
    found = {name: _at_head(problem, name, head, lengths, number_budget, seed) for name, head in heads.items()}
    table = pd.concat([rows for rows, _ in found.values()], ignore_index=True)
    curves = {(name, *key): curve for name, (_, at_head) in found.items() for key, curve in at_head.items()}
    predicted = {
        key: rows["predicted"].to_numpy(float)
        for key, rows in table[table["coefficient"] == "1"].groupby(["head", "control"])
    }
    far = predicted_gains(problem, long_prompt(problem).head, np.inf, stream(seed, "influence", "limit"), TRAINED_DRAWS)
    return Comparison(table, parts=_verdicts(table, curves, lengths, predicted, far))


def _verdicts(table, curves, lengths: list[int], predicted, far) -> dict[str, Comparison]:
    L = np.array(lengths)
    long, trained, shortest = L >= LONG_FROM, L >= TRAINED_FROM, min(lengths) == L
    start, nearly, half = (curves["start", "linear", c].at(long) for c in ("1", "0.9", "1/2"))
    one, half_short, best = (curves["trained", "linear", c] for c in ("1", "1/2", "best"))
    left = curves["trained", "affine", "1"] / one  # variance left without the uniform term, over that left with it
    expected = predicted["trained", "linear"][trained]
    with_term = predicted["trained", "affine"][trained]
    more = with_term / expected
    ratios = [curve / predicted["start", "linear"][long] for curve in (start, half, nearly)]
    window = LONG_FROM, max(lengths)
    at_start = curves["start", "linear", "1"].at(trained)
    sides = {  # measured, control, near miss
        "start": [ratio.pooled() for ratio in ratios],
        "growth": [ratio.slope(L[long], window) for ratio in ratios],
        "trained": [(one.at(trained) / x).pooled() for x in (expected, with_term)],
        "short": [curve.at(shortest) for curve in (one, best, half_short)],
        "affine": [(left.at(trained) / x).pooled() for x in (more, far["affine"] / far["linear"])],
    }
    sides["trained"].insert(1, (at_start / expected).pooled())
    typical = more.mean() if trained.any() else np.nan
    sides["affine"].insert(1, (left.at(shortest) / typical).pooled())
    return {name: Comparison(table, own, wrong, near_miss=near) for name, (own, wrong, near) in sides.items()}


def _at_head(problem, name: str, head: BlockHead | None, lengths: list[int], number_budget: int, seed: int):
    """The rows of one head and, for each control and coefficient, its gain as a curve over the lengths."""
    key, heads = STREAM_NAMES.get(name, name), [head or best_softmax(problem, length) for length in lengths]
    expected = _expected(problem, key, head, heads, lengths, seed)
    sizes: dict[tuple[str, str], list] = {}
    rows = []
    for here, length, predicted in zip(heads, lengths, expected, strict=True):
        count = int(np.clip(number_budget // (length * (problem.dimension + 1)), FEWEST_PROMPTS, MOST_PROMPTS))
        deviation = deviations(problem, here, length, count, stream(seed, "gains", key, length))
        own = (deviation["softmax"] ** 2).sum(1)
        for kind in KINDS[1:]:
            best = best_coefficient(deviation["softmax"], deviation[kind])
            for label, coefficient in {"1": 1.0, "best": best, "0.9": 0.9, "1/2": 0.5}.items():
                left = ((deviation["softmax"] - coefficient * deviation[kind]) ** 2).sum(1)
                sizes.setdefault((kind, label), []).append((own, left))
                row = {"head": name, "length": length, "prompts": count, "control": kind, "coefficient": label}
                row["value"] = coefficient
                rows.append(row | {"predicted": predicted[kind] if label == "1" else np.nan})
    curves, table = {}, pd.DataFrame(rows)
    for (kind, label), pairs in sizes.items():
        # the same stream, so the same groups of prompts, for every control
        curve = curves[kind, label] = Curve.of_ratios(pairs, stream(seed, "gains bootstrap", key))
        where = (table["control"] == kind) & (table["coefficient"] == label)
        for column, values in curve.columns().items():
            table.loc[where, "gain" if column == "measured" else column] = values
    return table, curves


def _expected(problem, key: str, head, heads, lengths, seed) -> list[dict[str, float]]:
    """The leading-order gains at each length: all from the same draws at one head, from fewer at the trained ones."""
    if head:
        found = predicted_gains(problem, head, lengths, stream(seed, "influence", key))
        return [{kind: values[k] for kind, values in found.items()} for k in range(len(lengths))]
    return [
        predicted_gains(problem, here, length, stream(seed, "influence", key), TRAINED_DRAWS)
        for here, length in zip(heads, lengths, strict=True)
    ]
