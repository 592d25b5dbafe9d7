"""Another kernel in a head that was trained with softmax, as it is and retrained: risks of in-context regression."""

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar

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
RATE = 0.01  # of learning, from Gaussian projections
SMALLER = 8.0  # times, the keys of the other start
NUMERICAL = 1e-6  # relative error of risks at heads found by search, and of their limit
TYPICAL_DEVIATION = 0.5  # of the scores, for which Performer's keys are scaled


def exact(*, problem: InContextRegression, lengths: list[float]) -> Comparison:
    """Exact risks at the softmax head that is best at each length, with the kernel swapped, and after retraining.

    Args:
        problem: the regression.
        lengths: prompt lengths L.

    Returns:
        A row a length: length; the risks of softmax, trained; moment and linear, swapped into its head as it is;
        linear, retrained; softmax, swapped back into that head.
        measured: the risk of linear, swapped, over that of softmax, trained, at the longest length, over the limit that
        :func:`long_prompt_ratio` predicts. control: linear, retrained, over softmax, swapped back, in place of it.
        near_miss: over a limit in which the linear risk lacks its second Wick pairing, tr(Sigma^2 A Sigma_q A').
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
    last, limit = table.iloc[int(np.argmax(lengths))], long_prompt_ratio(problem)
    swap = last["linear, swapped"] / last["softmax, trained"]
    back = last["linear, retrained"] / last["softmax, swapped back"]
    nearly = limit * problem.token_variance / (problem.token_variance + problem.covariance[0, 0])
    sides = [Estimate.exact(x, NUMERICAL * x) for x in (swap / limit, back / limit, swap / nearly)]
    return Comparison(table, sides[0], sides[1], near_miss=sides[2])


def long_prompt_ratio(problem: InContextRegression) -> float:
    """Limit of the risk of linear attention over that of the best softmax head, isotropic tasks, as L grows.

    Both heads have b A = 1 / Sigma there. L times the linear risk is d (tr Sigma + sigma_eps^2 + Sigma_11) / 2, and L
    times softmax's is ``InContextRegression.long_prompt_constant``, at the scale of A that makes it smallest.
    """
    d, variance = problem.dimension, problem.covariance[0, 0]

    def constant(scale):
        return problem.long_prompt_constant(scale * np.eye(d) / variance, 1 / scale)

    best = minimize_scalar(constant, bounds=(1e-3, np.sqrt(0.499)), method="bounded", options={"xatol": 1e-9})
    return float(problem.task_variance * d * (problem.token_variance + variance) / 2 / best.fun)


def exact_risks(problem: InContextRegression, head: BlockHead, length: float) -> dict[str, float]:
    """The exact risks of a head with the three kernels that have one."""
    return {
        "softmax": float(problem.softmax_risk(*head, length).value),
        "linear": float(problem.linear_risk(*head, length)),
        "moment": float(problem.moment_risk(*head, length)),
    }


def on_prompts(
    *, problem: InContextRegression, length: int, n_prompts: int, features: int, learned: Linformer, seed: int
) -> Comparison:
    """Every kernel in the head that is best for softmax, on prompts, as it is and retrained; isotropic tasks.

    By symmetry the best A is a multiple of the identity, so that retraining is a scale of the scores (one of SCALES)
    and the least-squares b, both from half of the prompts; risks are measured on the other half.

    Args:
        problem: with covariance and query covariance multiples of the identity.
        length: prompt length L.
        n_prompts: half to retrain, half to test; kernels that approximate see a fifth of them.
        features: m of Performer.
        learned: Linformer as :func:`learn_projections` has it; pooling gets as many rows.
        seed: of all.

    Returns:
        A row a kernel: kernel, scale, the risks swapped and retrained with the half-widths of their 95 % intervals, and
        the predicted risk of the swap where it is known (for learned projections see :func:`predicted_risk`).
        measured: risks of softmax, linear and moment attention, swapped, over the exact ones. control: over that of
        softmax. near_miss: over exact ones in which linear and moment attention lack tr(Sigma^2 A Sigma_q A').
    """
    head, rows = best_softmax(problem, length), len(learned.key_rows)
    known, name = exact_risks(problem, head, length), f"Linformer, p = {rows}, learned"
    predicted = known | {name: predicted_risk(problem, head, learned)["predicted"]}
    kernels: dict[str, AttentionKernel] = {
        "softmax": Softmax(),
        "linear": LinearAttention(),
        "moment": MomentAttention(),
        f"Performer, m = {features}": Performer(features),
        f"Linformer, p = {rows}, pooling": Linformer.pooling(length, rows),
        name: learned,
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
    exact, pairing = np.array(list(known.values())), _second_pairing(problem, head, length)
    nearly = exact - pairing * np.array([0, 1, 1 - 1 / length])
    return Comparison(pd.DataFrame(table), curve / exact, curve / known["softmax"], near_miss=curve / nearly)


def _second_pairing(problem: InContextRegression, head: BlockHead, length: int) -> float:
    """b^2 tr(Sigma^2 A Sigma_q A') / (2 L), one of the two pairings of the four x in the linear risk."""
    SA = problem.covariance @ head.A
    return problem.task_variance * head.b**2 * float(np.trace(SA @ problem.query_covariance @ SA.T)) / (2 * length)


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


def learn_projections(
    *, problem: InContextRegression, length: int, rows: int, steps: int, seed: int
) -> dict[str, Linformer]:
    """Projections learned on the task, the head that is best for softmax kept as it is: two trainings by name.

    One starts from Gaussian projections. The other from keys SMALLER times smaller and values as much larger, which is
    where linear attention lies, and at a lower rate.

    Args:
        problem: as for :func:`on_prompts`.
        length: prompt length L.
        rows: p.
        steps: of each training.
        seed: of all.
    """
    head = best_softmax(problem, length)

    def sample(n, rng):
        prompts = problem.sample(n, length, rng)
        keys, queries, values = _inputs(problem, head, prompts, np.ones(1))
        return keys, queries[:, 0], head.b * values, prompts.target[:, None]

    found = {}
    for name, smaller, rate in (("Gaussian", 1.0, RATE), (f"keys / {SMALLER:g}", SMALLER, RATE / 3)):
        rng = stream(seed, "swap", "learned", name)
        start = Linformer.gaussian(length, rows, int(rng.integers(2**32)))
        start = Linformer(start.key_rows / smaller, start.value_rows * smaller)
        found[name] = learn(start, sample, steps, rng, rate=rate)
    return found


def learned_risks(
    *, problem: InContextRegression, length: int, trained: dict[str, Linformer], n_prompts: int, seed: int
) -> Comparison:
    """Risks of learned projections on prompts, beside what their matrices predict.

    Args:
        problem: as for :func:`on_prompts`.
        length: prompt length L.
        trained: as :func:`learn_projections` has them.
        n_prompts: to test.
        seed: of the prompts.

    Returns:
        A row a training: start, measured, low, high, and the columns of :func:`predicted_risk`.
        measured: the risks over the predicted ones. control: over that of softmax, which they replace. near_miss: over
        that of linear attention on p - 1 tokens alone.
    """
    head, samples = best_softmax(problem, length), []
    test = problem.sample(n_prompts, length, stream(seed, "swap", "test learned"))
    for kernel in trained.values():
        predictions = head.b * _outputs(kernel, _inputs(problem, head, test, np.ones(1)), seed)[:, 0]
        samples.append((predictions - test.target) ** 2 / 2)
    curve = Curve.from_samples(samples, stream(seed, "swap", "learned", "bootstrap"))
    predicted = pd.DataFrame([predicted_risk(problem, head, kernel) for kernel in trained.values()])
    table = pd.concat([pd.DataFrame({"start": list(trained), **curve.columns()}), predicted], axis=1)
    softmax = float(problem.softmax_risk(*head, length).value)
    exact, floor = predicted["predicted"].to_numpy(), predicted["p - 1 tokens"].to_numpy()
    return Comparison(table, curve / exact, curve / softmax, near_miss=curve / floor)


def predicted_risk(problem: InContextRegression, head: BlockHead, kernel: Linformer) -> dict[str, float]:
    """What the matrices of a learned Linformer say of its risk, isotropic tasks: a sum of three exact numbers.

    Returns:
        key_scale, sqrt(|E|^2 / (p - 1)) with the mean over the rows of E taken out, which changes nothing;
        "p - 1 tokens", the risk of the best linear attention on so many; "projection", what :func:`linear_limit_risk`
        exceeds it by; "keys", what :func:`centered_risk` at the key scale exceeds it by; predicted, their sum.

    That the last two add up is heuristic.
    """
    rows = len(kernel.key_rows)
    scale = float(np.sqrt(((kernel.key_rows - kernel.key_rows.mean(0)) ** 2).sum() / (rows - 1)))
    A = scale * head.A
    floor = float(problem.linear_risk(*best_linear(problem, rows - 1), rows - 1))
    prices = {
        "projection": linear_limit_risk(problem, head, kernel) - floor,
        "keys": centered_risk(problem, BlockHead(A, best_centered_b(problem, A, rows)), rows) - floor,
    }
    return {"key_scale": scale, "p - 1 tokens": floor} | prices | {"predicted": floor + sum(prices.values())}


def centered_risk(problem: InContextRegression, head: BlockHead, rows: int) -> float:
    """Exact risk of softmax attention on p tokens less the mean of their labels, which is `Linformer.centered`.

    ``softmax_risk - b^2 t / (2 p)``, t the variance of a label: the mean of the labels is uncorrelated with the target,
    and its covariance with softmax's output is its own variance, t / p (Stein).
    """
    mean = problem.task_variance * head.b**2 * problem.token_variance / (2 * rows)
    return float(problem.softmax_risk(*head, rows).value) - mean


def best_centered_b(problem: InContextRegression, A: np.ndarray, rows: int) -> float:
    """The b at which :func:`centered_risk`, a parabola in it, is smallest."""
    none, one, two = (centered_risk(problem, BlockHead(A, b), rows) for b in (0.0, 1.0, 2.0))
    curvature = (two - 2 * one + none) / 2
    return (curvature - (one - none)) / (2 * curvature)


def linear_limit_risk(problem: InContextRegression, head: BlockHead, kernel: Linformer) -> float:
    """Exact risk of what a Linformer is once its keys are small and its values as much larger, isotropic tasks.

    The output is then f' y + x_q' A' X' G y, f the mean of the rows of F and G = E' (F - 1 f') / p:

        c/2 { r^2 [ d (tr G)^2 + d tr(G^2) + d t |G|_F^2 / c ] - 2 r d tr G + d } + b^2 t |f|^2 / 2,

    Sigma = c I, A = (r / (b c)) I, t the variance of a label. For G a multiple of a projection to p - 1 dimensions, and
    f = 0, it is the risk of linear attention on p - 1 tokens.
    """
    d, c, t = problem.dimension, problem.covariance[0, 0], problem.token_variance
    f = kernel.value_rows.mean(0)
    G = kernel.key_rows.T @ (kernel.value_rows - f) / len(kernel.key_rows)
    r, trace = head.b * head.A[0, 0] * c, np.trace(G)
    form = d * (trace**2 + np.vdot(G, G.T) + t / c * np.vdot(G, G))
    slopes = c * (r**2 * form - 2 * r * d * trace + d)
    return float(problem.task_variance * (slopes + head.b**2 * t * (f @ f)) / 2)


def centered_on_prompts(
    *, problem: InContextRegression, length: int, rows: int, scales: list[float], n_prompts: int, seed: int
) -> Comparison:
    """Risks of `Linformer.centered` on prompts over their exact ones, at several key scales and each at its best b.

    Args:
        problem: as for :func:`on_prompts`.
        length: prompt length L.
        rows: p.
        scales: of the keys.
        n_prompts: of each scale.
        seed: of prompts and projections.

    Returns:
        A row a scale: key_scale, measured, low, high, exact.
        measured: the curve over :func:`centered_risk`. control: over the risk of softmax on p tokens, with the mean of
        their labels. near_miss: over that of the best linear attention on p - 1 tokens, the limit of small keys.
    """
    head, samples, exact, wrong = best_softmax(problem, length), [], [], []
    for scale in scales:
        scaled = BlockHead(scale * head.A, best_centered_b(problem, scale * head.A, rows))
        rng = stream(seed, "swap", "centered", round(1000 * scale))
        kernel = Linformer.centered(length, rows, scale, int(rng.integers(2**32)))
        test = problem.sample(n_prompts, length, rng)
        outputs = _outputs(kernel, _inputs(problem, head, test, np.ones(1)), seed)[:, 0]
        samples.append((scale * scaled.b * outputs - test.target) ** 2 / 2)
        exact.append(centered_risk(problem, scaled, rows))
        wrong.append(float(problem.softmax_risk(*scaled, rows).value))
    curve = Curve.from_samples(samples, stream(seed, "swap", "centered", "bootstrap"))
    floor = float(problem.linear_risk(*best_linear(problem, rows - 1), rows - 1))
    return Comparison.of_curve(curve, np.array(exact), np.array(wrong), floor, key_scale=scales)
