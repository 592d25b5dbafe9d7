"""Experiments of notebook 05 on tasks: a kernel swapped into a trained head, and a task that linear attention fails."""

import numpy as np
import pandas as pd

from lib.experiments.attention_kernels.approximations import best_key_variance
from lib.kernels import AttentionKernel, LinearAttention, Linformer, MomentAttention, Performer, Softmax
from lib.kernels.linformer import learn
from lib.prompts.curve import Curve, join
from lib.prompts.streams import stream
from lib.regression import single_location as retrieval
from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.head import Prompts
from lib.regression.task import InContextRegression

SCALES = np.geomspace(0.2, 5, 11)  # of the scores, tried when a head is retrained
FEATURES = 2**23  # of Performer that single-location regression takes at a time
APPROXIMATE = 5  # kernels that approximate see one in this many prompts, because they cost more


def swaps(problem: InContextRegression, lengths: list[int]) -> pd.DataFrame:
    """Exact risks at the softmax head that is best at each length, with the kernel swapped, and after retraining.

    Columns: length; softmax, the head's own; linear and moment, swapped into it as it is; retrained, the best linear
    head; back, softmax swapped into that one.
    """
    rows = []
    for length in lengths:
        head, linear = best_softmax(problem, length), best_linear(problem, length)
        row = {"length": length, "softmax": float(problem.softmax_risk(*head, length).value)}
        row["linear"] = float(problem.linear_risk(*head, length))
        row["moment"] = float(problem.moment_risk(*head, length))
        row["retrained"] = float(problem.linear_risk(*linear, length))
        row["back"] = float(problem.softmax_risk(*linear, length).value)
        rows.append(row)
    return pd.DataFrame(rows)


class SwapsOnPrompts:
    """Every kernel in the head that is best for softmax, on prompts, as it is and retrained; isotropic tasks.

    By symmetry the best A is a multiple of the identity, so that retraining is a scale of the scores (one of SCALES)
    and the least-squares b, both from half of the prompts; risks are measured on the other half.

    Args:
        problem: with covariance and query covariance multiples of the identity. length: of the prompts.
        n_prompts: half to retrain, half to test; approximate kernels see a fifth of them. features: of Performer.
        rows: of Linformer. steps: to learn its projections on the task.

    Attributes:
        table: kernel, swapped and retrained risk with half-widths of 95 % intervals, scale, and the predicted risk of
            the swap where it is known (for learned projections that of the best linear attention on p - 1 tokens).
        ratio, untrained: curves measured / exact of softmax, linear and moment attention; and over softmax's risk.
    """

    def __init__(
        self, problem: InContextRegression, length: int, n_prompts: int, features: int, rows: int, steps, seed
    ):
        self.problem, self.length, self.head = problem, length, best_softmax(problem, length)
        exact = {
            "softmax": float(problem.softmax_risk(*self.head, length).value),
            "linear": float(problem.linear_risk(*self.head, length)),
            "moment": float(problem.moment_risk(*self.head, length)),
        }
        learned = f"Linformer, p = {rows}, learned"
        kernels: dict[str, AttentionKernel] = {
            "softmax": Softmax(),
            "linear": LinearAttention(),
            "moment": MomentAttention(),
            f"Performer, m = {features}": Performer(features),
            f"Linformer, p = {rows}, pooling": Linformer.pooling(length, rows),
            learned: self._learned(rows, steps, seed),
        }
        floor = float(problem.linear_risk(*best_linear(problem, rows - 1), rows - 1))
        train, test = (problem.sample(n_prompts // 2, length, stream(seed, "swap", x)) for x in ("train", "test"))
        table, samples = [], []
        for name, kernel in kernels.items():
            few = slice(len(train.target) // (1 if name in exact else APPROXIMATE))
            at_train, at_test = (self._outputs(kernel, Prompts(*(x[few] for x in p)), seed) for p in (train, test))
            wanted = train.target[few, None]
            b = (at_train * wanted).mean(0) / (at_train**2).mean(0)
            best = int(np.argmin(((b * at_train - wanted) ** 2).mean(0)))
            swapped = (self.head.b * at_test[:, -1] - test.target[few]) ** 2 / 2
            retrained = (b[best] * at_test[:, best] - test.target[few]) ** 2 / 2
            row = {"kernel": name, "scale": np.append(SCALES, 1.0)[best]}
            for what, loss in (("swapped", swapped), ("retrained", retrained)):
                row |= {what: loss.mean(), f"{what} ±": 1.96 * loss.std() / np.sqrt(len(loss))}
            table.append(row | {"predicted": exact.get(name, floor if name == learned else np.nan)})
            if name in exact:
                samples.append(swapped)
        self.table = pd.DataFrame(table)
        curve = Curve.from_samples(samples, stream(seed, "swap", "bootstrap"))
        self.ratio, self.untrained = curve / np.array(list(exact.values())), curve / exact["softmax"]

    def _inputs(self, prompts, scales):
        """Keys, queries (n, scales, d) and values for every scale of the scores; b is left out."""
        tokens, query, _ = prompts
        root = np.sqrt(best_key_variance(0.5, self.problem.dimension) / self.problem.covariance[0, 0])
        queries = scales[:, None] * (query @ self.head.A.T / root)[:, None]
        return root * tokens[..., :-1], queries, tokens[..., -1:]

    def _outputs(self, kernel, prompts, seed) -> np.ndarray:
        """Outputs (n, scales) at b = 1, the last scale being 1; random features are redrawn every hundred prompts."""
        keys, queries, values = self._inputs(prompts, np.append(SCALES, 1.0))
        outputs = []
        for i in range(0, len(keys), 100):
            if isinstance(kernel, Performer):
                kernel = kernel.redraw(seed + i)
            part = slice(i, i + 100)
            outputs.append(kernel(keys[part], queries[part], values[part])[..., 0])
        return np.concatenate(outputs)

    def _learned(self, rows: int, steps: int, seed: int) -> Linformer:
        """Projections learned on the task, the head kept as it is."""

        def sample(n, rng):
            prompts = self.problem.sample(n, self.length, rng)
            keys, queries, values = self._inputs(prompts, np.ones(1))
            return keys, queries[:, 0], self.head.b * values, prompts.target[:, None]

        rng = stream(seed, "swap", "learned")
        start = Linformer.gaussian(self.length, rows, int(rng.integers(2**32)))
        return learn(start, sample, steps, rng)


def kernels_at_heads(table: pd.DataFrame) -> pd.DataFrame:
    """The table of `swaps` with one row a kernel and length, for a figure."""
    names = {
        "softmax": "softmax, trained",
        "moment": "moment, swapped",
        "linear": "linear, swapped",
        "retrained": "linear, retrained",
        "back": "softmax, swapped back",
    }
    return table.rename(columns=names).melt("length", list(names.values()), var_name="kernel", value_name="risk")


def needed_strengths(lengths: list[float]) -> pd.DataFrame:
    """kappa^2 at which softmax and the best affine attention halve the risk of single-location regression, exact.

    ``slope`` is d kappa^2 / d log L for softmax, from the length before.
    """
    softmax, affine = (np.array(x) ** 2 for x in zip(*map(retrieval.needed_strength, lengths), strict=True))
    slope = np.append(np.nan, np.diff(softmax) / np.diff(np.log(lengths)))
    return pd.DataFrame({"length": lengths, "softmax": softmax, "affine": affine, "slope": slope})


def retrievals(multiple: float, lengths: list[int], features: int, n_prompts: int, seed: int):
    """Single-location regression at kappa^2 = multiple * 2 log L: risks on prompts, each kernel at its best b.

    The kernels see the head U z = kappa k, V = v' through keys h_i = x_i . k (one number a token). Performer sees
    fewer prompts, its keys scaled by the best of several factors. ``best affine`` is the best attention with
    weights affine in the scores.

    Returns a tidy table (kernel, length, measured, low, high, exact where known), the curve measured / exact of softmax
    and of the best affine attention, the same with the two exact curves exchanged, and for each kernel its risk at the
    last length, as a curve of one point.
    """
    samples: dict[str, list[np.ndarray]] = {}
    strengths = [np.sqrt(multiple * 2 * np.log(length)) for length in lengths]
    for length, kappa in zip(lengths, strengths, strict=True):
        rng, losses = stream(seed, "retrieval", length), {}
        for _ in range(10):
            tokens, target = retrieval.sample(n_prompts // 10, length, 2, kappa, rng)
            for name, outputs in _retrieved(tokens, kappa, features, int(rng.integers(2**32))).items():
                wanted = target[: outputs.shape[1]]
                losses.setdefault(name, []).append(np.stack([outputs, np.broadcast_to(wanted, outputs.shape)]))
        for name, parts in losses.items():
            outputs, wanted = np.concatenate(parts, axis=-1)
            b = np.vecdot(outputs, wanted) / np.vecdot(outputs, outputs)
            squares = (b[:, None] * outputs - wanted) ** 2
            samples.setdefault(name, []).append(squares[np.argmin(squares.mean(1))])
    exact = {
        "softmax": np.array([retrieval.softmax_risk(k, x) for k, x in zip(strengths, lengths, strict=True)]),
        "best affine": retrieval.affine_risk(strengths, lengths),
    }
    curves = {k: Curve.from_samples(x, stream(seed, "retrieval", k)) for k, x in samples.items()}
    tables = []
    for name, curve in curves.items():
        low, high = curve.simultaneous()
        columns = {"kernel": name, "length": lengths, "measured": curve.mean, "low": low, "high": high}
        tables.append(pd.DataFrame(columns | {"exact": exact.get(name, np.full(len(lengths), np.nan))}))
    right = join([curves[name] / exact[name] for name in exact])
    wrong = join([curves[a] / exact[b] for a, b in (tuple(exact), tuple(exact)[::-1])])
    last = {k: Curve.from_samples(x[-1:], stream(seed, "retrieval", "last", k)) for k, x in samples.items()}
    return pd.concat(tables, ignore_index=True), right, wrong, last


def _retrieved(tokens: np.ndarray, kappa: float, features: int, seed: int) -> dict[str, np.ndarray]:
    """Outputs of every kernel at b = 1, shape (variants, n)."""
    length = tokens.shape[1]
    keys, query, values = tokens[..., :1], np.array([kappa]), tokens[..., 1:]
    kernels = {"softmax": Softmax(), "moment": MomentAttention(), "linear": LinearAttention()}
    outputs = {name: kernel(keys, query, values).T for name, kernel in kernels.items()}
    weights = 1 / (length - 1) + kappa * keys[..., 0] / length
    outputs["best affine"] = np.vecdot(weights, values[..., 0])[None]
    few = slice(max(2, min(len(tokens) // 10, FEATURES // (length * features))))
    kernel = Performer(features, seed=seed)
    drawn = [kernel(x * keys[few], query / x, values[few])[:, 0] for x in (0.2, 0.5, 1.0, 2.0)]
    return outputs | {f"Performer, m = {features}": np.array(drawn)}
