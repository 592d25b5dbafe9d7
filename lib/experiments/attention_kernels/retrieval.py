"""Single-location regression, a task that linear attention must lose: find the one relevant token of a prompt."""

import numpy as np
import pandas as pd

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
        measured: softmax and the best affine attention over their exact risks. control: over each other's.
        The part ``lost``: the risk of moment attention at the last length; control: that of softmax.
    """
    samples: dict[str, list[np.ndarray]] = {}
    strengths = [np.sqrt(margin * 2 * np.log(length)) for length in lengths]
    for length, beta in zip(lengths, strengths, strict=True):
        for name, losses in _losses(length, beta, features, n_prompts, stream(seed, "retrieval", length)).items():
            samples.setdefault(name, []).append(losses)
    exact = {
        "softmax": np.array([single_location.softmax_risk(b, x) for b, x in zip(strengths, lengths, strict=True)]),
        "best affine": single_location.affine_risk(strengths, lengths),
    }
    wrong = dict(zip(exact, reversed(exact.values()), strict=True))
    unknown, parts = np.full(len(lengths), np.nan), {}
    for name, losses in samples.items():
        curve = Curve.from_samples(losses, stream(seed, "retrieval", name))
        columns = {"kernel": name, "length": lengths}
        parts[name] = Comparison.of_curve(curve, exact.get(name, unknown), wrong.get(name, unknown), **columns)
    judged = Comparison.together({name: parts[name] for name in exact})
    moment, softmax = (
        Curve.from_samples(samples[name][-1:], stream(seed, "retrieval", "last", name))
        for name in ("moment", "softmax")
    )
    lost = Comparison(measured=moment, control=softmax)
    table = pd.concat([part.table for part in parts.values()], ignore_index=True)
    return Comparison(table, judged.measured, judged.control, {"lost": lost})


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
        A row a length: length, softmax, affine, and ``slope``, d beta^2 / d log L of softmax from the length before.
        measured: the last slope of softmax. control: of the best affine attention.
    """
    needed = [single_location.needed_strength(length) for length in lengths]
    softmax, affine = (np.array(x) ** 2 for x in zip(*needed, strict=True))
    slopes = [np.diff(x) / np.diff(np.log(lengths)) for x in (softmax, affine)]
    columns = {"length": lengths, "softmax": softmax, "affine": affine, "slope": np.append(np.nan, slopes[0])}
    return Comparison(pd.DataFrame(columns), *(Estimate.exact(x[-1], 1e-6) for x in slopes))
