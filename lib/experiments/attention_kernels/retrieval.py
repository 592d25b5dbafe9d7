"""Single-location regression, a task that linear attention must lose: find the one relevant token of a prompt."""

import numpy as np
import pandas as pd
from scipy.stats import norm

from lib.kernels import LinearAttention, MomentAttention, Performer, Softmax
from lib.notebook.comparison import Comparison
from lib.prompts.curve import Curve
from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream
from lib.regression import single_location

FEATURES = 2**23  # of Performer that are taken at a time
PARTS = 10  # in which the prompts of a length are drawn
KEY_SCALES = (0.2, 0.5, 1.0, 2.0)  # of Performer's keys: the best of them counts


def risks(*, margin: float, lengths: list[int], features: int, n_prompts: int, seed: int) -> Comparison:
    """Risks at strength beta^2 = margin * 2 log L from prompts, each kernel at its best b.

    The kernels see the head U z = beta e_1, V = e_2' through keys x_i . e_1, one number a token. ``best affine`` is the
    best attention with weights affine in the scores.

    Args:
        margin: beta^2 over 2 log L.
        lengths: prompt lengths L, from 2, the largest last.
        features: m of Performer, which sees a tenth of the prompts at most.
        n_prompts: prompts a length.
        seed: of prompts and features.

    Returns:
        A row a kernel and length: kernel, length, measured, low, high, exact (NaN where unknown).
        measured: softmax and the best affine attention over their exact risks. control: over each other's. near_miss:
        over those that look like them, see :func:`nearly_exact`.
    """
    samples: dict[str, list[np.ndarray]] = {}
    strengths = [np.sqrt(margin * 2 * np.log(length)) for length in lengths]
    for length, beta in zip(lengths, strengths, strict=True):
        for name, losses in _losses(length, beta, features, n_prompts, stream(seed, "retrieval", length)).items():
            samples.setdefault(name, []).append(losses)
    exact, nearly = exact_risks(strengths, lengths), nearly_exact(strengths, lengths)
    judged = "softmax", "best affine"
    wrong = {name: exact[other] for name, other in zip(judged, reversed(judged), strict=True)}
    unknown, parts = np.full(len(lengths), np.nan), {}
    for name, losses in samples.items():
        curve = Curve.from_samples(losses, stream(seed, "retrieval", name))
        given = (values.get(name, unknown) for values in (exact, wrong, nearly))
        parts[name] = Comparison.of_curve(curve, *given, kernel=name, length=lengths)
    table = Comparison.together(parts).table
    shown = Comparison.together({name: parts[name] for name in judged})
    return Comparison(table, shown.measured, shown.control, near_miss=shown.near_miss)


def exact_risks(strengths, lengths) -> dict[str, np.ndarray]:
    """The risks of the kernels that have an exact one, shape (n,) each."""
    softmax = [single_location.softmax_risk(b, x) for b, x in zip(strengths, lengths, strict=True)]
    affine = {
        "moment": single_location.moment_risk,
        "linear": single_location.linear_risk,
        "best affine": single_location.affine_risk,
    }
    return {"softmax": np.array(softmax)} | {name: f(strengths, lengths) for name, f in affine.items()}


def nearly_exact(strengths, lengths) -> dict[str, np.ndarray]:
    """Risks that look like the exact ones of softmax and of the best affine attention, shape (n,) each.

    Softmax with what the other L - 1 tokens weigh replaced by its mean, (L - 1) e^{beta^2 / 2}; and the best affine
    attention as if it were linear attention.
    """
    strengths, lengths = np.array(strengths), np.array(lengths)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    own = np.exp(strengths[:, None] * (strengths[:, None] + nodes))
    others = (lengths - 1) * np.exp(strengths**2 / 2)
    softmax = 1 - own / (own + others[:, None]) @ weights / weights.sum()
    return {"softmax": softmax, "best affine": single_location.linear_risk(strengths, lengths)}


def gains(*, margin: float, lengths: list[int], n_prompts: int, seed: int) -> Comparison:
    """What moment attention finds of the one relevant token, 1 - its risk, from its weights on prompts.

    Given the keys the values are standard normal: the gain of the best b is (E w_J)^2 / E sum w_i^2. The kernel is
    asked for w_J by values that are 1 at place J and 0 elsewhere; sum w_i^2 is the mean square of its output.

    Args:
        margin, lengths, n_prompts, seed: as for :func:`risks`.

    Returns:
        A row a length: length, measured, low, high, exact.
        measured: the curve over the exact gain. control: the gain of softmax over it, both from these prompts.
        near_miss: over the gain of linear attention.
    """
    strengths = [np.sqrt(margin * 2 * np.log(length)) for length in lengths]
    found: dict[str, list[np.ndarray]] = {"moment": [], "softmax": []}
    for length, beta in zip(lengths, strengths, strict=True):
        rng, parts = stream(seed, "retrieval", "gains", length), {name: [] for name in found}
        for _ in range(PARTS):
            tokens, target = single_location.sample(n_prompts // PARTS, length, 2, beta, rng)
            here = tokens[..., 1] == target[:, None]
            values = np.stack([here, tokens[..., 1]], -1)
            for name, kernel in (("moment", MomentAttention()), ("softmax", Softmax())):
                parts[name].append(kernel(tokens[..., :1], np.array([beta]), values))
        for name, outputs in parts.items():
            found[name].append(np.concatenate(outputs))
    moment, softmax = (_gain(outputs, seed) for outputs in found.values())
    exact, linear = (1 - f(strengths, lengths) for f in (single_location.moment_risk, single_location.linear_risk))
    return Comparison(
        pd.DataFrame({"length": lengths, **moment.columns(), "exact": exact}),
        moment / exact,
        softmax / exact,
        near_miss=moment / linear,
    )


def _gain(outputs: list[np.ndarray], seed: int) -> Curve:
    """(E w_J)^2 / E out^2 from outputs (n, 2) at every length, numerator and denominator resampled alike."""
    weight, square = (
        Curve.from_samples(samples, stream(seed, "retrieval", "gains", "bootstrap"))
        for samples in ([x[:, 0] for x in outputs], [x[:, 1] ** 2 for x in outputs])
    )
    return Curve(weight.mean**2, weight.resampled**2) / square


def _losses(length: int, beta: float, features: int, n_prompts: int, rng) -> dict[str, np.ndarray]:
    """Squared errors of every kernel at its best b, and of its best variant, shape (n,)."""
    drawn: dict[str, list[np.ndarray]] = {}
    for _ in range(PARTS):
        tokens, target = single_location.sample(n_prompts // PARTS, length, 2, beta, rng)
        for name, outputs in _outputs(tokens, beta, features, int(rng.integers(2**32))).items():
            wanted = np.broadcast_to(target[: outputs.shape[1]], outputs.shape)
            drawn.setdefault(name, []).append(np.stack([outputs, wanted]))
    losses = {}
    for name, parts in drawn.items():
        outputs, wanted = np.concatenate(parts, axis=-1)
        b = np.vecdot(outputs, wanted) / np.vecdot(outputs, outputs)
        squares = (b[:, None] * outputs - wanted) ** 2
        losses[name] = squares[np.argmin(squares.mean(1))]
    return losses


def _outputs(tokens: np.ndarray, beta: float, features: int, seed: int) -> dict[str, np.ndarray]:
    """Outputs of every kernel at b = 1, shape (variants, n)."""
    length = tokens.shape[1]
    keys, query, values = tokens[..., :1], np.array([beta]), tokens[..., 1:]
    kernels = {"softmax": Softmax(), "moment": MomentAttention(), "linear": LinearAttention()}
    outputs = {name: kernel(keys, query, values).T for name, kernel in kernels.items()}
    weights = 1 / (length - 1) + beta * keys[..., 0] / length
    outputs["best affine"] = np.vecdot(weights, values[..., 0])[None]
    few = slice(max(2, min(len(tokens) // 10, FEATURES // (length * features))))
    kernel = Performer(features, seed=seed)
    drawn = [kernel(x * keys[few], query / x, values[few])[:, 0] for x in KEY_SCALES]
    return outputs | {f"Performer, m = {features}": np.array(drawn)}


def needed_strengths(*, lengths: list[float]) -> Comparison:
    """beta^2 at which softmax and the best affine attention halve the risk, exact.

    Args:
        lengths: prompt lengths L, increasing, up to 1e15.

    Returns:
        A row a length: length, softmax, affine, ``slope``, d beta^2 / d log L of softmax from the length before, and
        ``short of 2 log L``, by how much its beta^2 is smaller than that.
        measured: the last slope of softmax. control: of the best affine attention. near_miss: of the strength equal to
        the median of the largest of L standard normal scores.
    """
    needed = [single_location.needed_strength(length) for length in lengths]
    softmax, affine = (np.array(x) ** 2 for x in zip(*needed, strict=True))
    largest = norm.isf(-np.expm1(-np.log(2) / np.array(lengths))) ** 2
    slopes = [np.diff(x) / np.diff(np.log(lengths)) for x in (softmax, affine, largest)]
    columns = {"length": lengths, "softmax": softmax, "affine": affine, "slope": np.append(np.nan, slopes[0])}
    table = pd.DataFrame(columns | {"short of 2 log L": 2 * np.log(lengths) - softmax})
    measured, control, near_miss = (Estimate.exact(x[-1], 1e-6 * abs(x[-1])) for x in slopes)
    return Comparison(table, measured, control, near_miss=near_miss)
