"""Another kernel in a head that was trained with softmax, as it is and retrained: risks of in-context regression."""

import numpy as np
import pandas as pd

from lib.experiments.attention_kernels.random_features import best_key_variance
from lib.kernels import AttentionKernel, LinearAttention, Linformer, MomentAttention, Performer, Softmax
from lib.kernels.linformer import learn
from lib.notebook.comparison import Comparison
from lib.prompts.batches import batches
from lib.prompts.curve import Curve
from lib.prompts.estimate import NORMAL, Estimate
from lib.prompts.streams import stream
from lib.regression.best_heads import best_linear, best_softmax
from lib.regression.head import BlockHead, Prompts
from lib.regression.task import InContextRegression

SCALES = np.append(np.geomspace(0.2, 5, 11), 1.0)  # of the scores, tried when a head is retrained; last: as they are
APPROXIMATE = 5  # kernels that approximate see one in this many prompts, because they cost more
PROMPTS_AT_ONCE = 100  # that see the same random features
TYPICAL_DEVIATION = 0.5  # of the scores, for which Performer's keys are scaled


def exact(*, problem: InContextRegression, lengths: list[float]) -> Comparison:
    """Exact risks at the softmax head that is best at each length, with the kernel swapped, and after retraining.

    Args:
        problem: the regression.
        lengths: prompt lengths L.

    Returns:
        A row a length: length; the risks of softmax, trained; moment and linear, swapped into its head as it is;
        linear, retrained; softmax, swapped back into that head.
        measured: the largest risk of linear, swapped, over softmax, trained. control: the smallest of softmax, swapped
        back, over linear, retrained.
    """
    rows = []
    for length in lengths:
        head, linear = best_softmax(problem, length), best_linear(problem, length)
        risks = exact_risks(problem, head, length)
        row = {"length": length, "softmax, trained": risks["softmax"]}
        row |= {"moment, swapped": risks["moment"], "linear, swapped": risks["linear"]}
        row["linear, retrained"] = float(problem.linear_risk(*linear, length))
        row["softmax, swapped back"] = float(problem.softmax_risk(*linear, length).value)
        rows.append(row)
    table = pd.DataFrame(rows)
    ratio = (table["linear, swapped"] / table["softmax, trained"]).max()
    back = (table["softmax, swapped back"] / table["linear, retrained"]).min()
    return Comparison(table, Estimate.exact(ratio), Estimate.exact(back))


def exact_risks(problem: InContextRegression, head: BlockHead, length: float) -> dict[str, float]:
    """The exact risks of a head with the three kernels that have one."""
    return {
        "softmax": float(problem.softmax_risk(*head, length).value),
        "linear": float(problem.linear_risk(*head, length)),
        "moment": float(problem.moment_risk(*head, length)),
    }


def on_prompts(
    *, problem: InContextRegression, length: int, n_prompts: int, features: int, rows: int, steps: int, seed: int
) -> Comparison:
    """Every kernel in the head that is best for softmax, on prompts, as it is and retrained; isotropic tasks.

    By symmetry the best A is a multiple of the identity, so that retraining is a scale of the scores (one of SCALES)
    and the least-squares b, both from half of the prompts; risks are measured on the other half.

    Args:
        problem: with covariance and query covariance multiples of the identity.
        length: prompt length L.
        n_prompts: half to retrain, half to test; kernels that approximate see a fifth of them.
        features: m of Performer.
        rows: p of Linformer.
        steps: to learn its projections on the task.
        seed: of all.

    Returns:
        A row a kernel: kernel, scale, the risks swapped and retrained with the half-widths of their 95 % intervals, and
        the predicted risk of the swap where it is known (for learned projections that of the best linear attention on
        p - 1 tokens).
        measured: risks of softmax, linear and moment attention, swapped, over the exact ones. control: over that of
        softmax.
    """
    head = best_softmax(problem, length)
    known = exact_risks(problem, head, length)
    learned = f"Linformer, p = {rows}, learned"
    predicted = known | {learned: float(problem.linear_risk(*best_linear(problem, rows - 1), rows - 1))}
    kernels: dict[str, AttentionKernel] = {
        "softmax": Softmax(),
        "linear": LinearAttention(),
        "moment": MomentAttention(),
        f"Performer, m = {features}": Performer(features),
        f"Linformer, p = {rows}, pooling": Linformer.pooling(length, rows),
        learned: _learned(problem, head, length, rows, steps, seed),
    }
    train, test = (problem.sample(n_prompts // 2, length, stream(seed, "swap", x)) for x in ("train", "test"))
    table, samples = [], []
    for name, kernel in kernels.items():
        few = slice(len(train.target) // (1 if name in known else APPROXIMATE))
        losses, scale = _losses(kernel, problem, head, _some(train, few), _some(test, few), seed)
        row = {"kernel": name, "scale": scale}
        for what, loss in losses.items():
            row |= {what: loss.mean(), f"{what} ±": NORMAL * loss.std() / np.sqrt(len(loss))}
        table.append(row | {"predicted": predicted.get(name, np.nan)})
        if name in known:
            samples.append(losses["swapped"])
    curve = Curve.from_samples(samples, stream(seed, "swap", "bootstrap"))
    return Comparison(pd.DataFrame(table), curve / np.array(list(known.values())), curve / known["softmax"])


def _some(prompts: Prompts, few: slice) -> Prompts:
    return Prompts(*(x[few] for x in prompts))


def _losses(kernel, problem, head, train, test, seed) -> tuple[dict[str, np.ndarray], float]:
    """Losses on the test prompts, swapped and retrained, and the scale of the scores that retraining chose."""
    at_train, at_test = (_outputs(kernel, _inputs(problem, head, x, SCALES), seed) for x in (train, test))
    wanted = train.target[:, None]
    b = (at_train * wanted).mean(0) / (at_train**2).mean(0)
    best = int(np.argmin(((b * at_train - wanted) ** 2).mean(0)))
    predictions = {"swapped": head.b * at_test[:, -1], "retrained": b[best] * at_test[:, best]}
    return {what: (x - test.target) ** 2 / 2 for what, x in predictions.items()}, SCALES[best]


def _inputs(problem, head, prompts, scales) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, queries (n, scales, d) and values for every scale of the scores; b is left out."""
    tokens, query, _ = prompts
    root = np.sqrt(best_key_variance(TYPICAL_DEVIATION, problem.dimension) / problem.covariance[0, 0])
    queries = scales[:, None] * (query @ head.A.T / root)[:, None]
    return root * tokens[..., :-1], queries, tokens[..., -1:]


def _outputs(kernel, inputs, seed) -> np.ndarray:
    """Outputs (n, scales) at b = 1; random features are redrawn every hundred prompts."""
    outputs = []
    for part in batches(len(inputs[0]), 1, PROMPTS_AT_ONCE):
        if isinstance(kernel, Performer):
            kernel = kernel.redraw(seed + part.start)
        outputs.append(kernel(*(x[part] for x in inputs))[..., 0])
    return np.concatenate(outputs)


def _learned(problem, head, length, rows, steps, seed) -> Linformer:
    """Projections learned on the task, the head kept as it is."""

    def sample(n, rng):
        prompts = problem.sample(n, length, rng)
        keys, queries, values = _inputs(problem, head, prompts, np.ones(1))
        return keys, queries[:, 0], head.b * values, prompts.target[:, None]

    rng = stream(seed, "swap", "learned")
    start = Linformer.gaussian(length, rows, int(rng.integers(2**32)))
    return learn(start, sample, steps, rng)
