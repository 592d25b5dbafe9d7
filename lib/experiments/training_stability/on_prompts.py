"""Experiments of notebook 03 on raw prompts: stochastic training against the exact flows, one function a section."""

import numpy as np
import pandas as pd

from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.flow import gradient_flow
from lib.regression.head_risk import checkpoint_risks, held_out_risks
from lib.regression.sgd import block_start, factored_start, full_start, train
from lib.regression.task import InContextRegression
from lib.tokens.families import Rademacher, Uniform


def sgd_checkpoints(
    problem: InContextRegression, lengths, alpha, step_size, n_steps, seeds: int, batch: int, seed: int
) -> pd.DataFrame:
    """SGD on (A, b) from raw prompts, softmax and linear on the same ones, against the exact flow at every checkpoint.

    Columns: length, attention, time, measured (seed mean of the exact risk of the trained heads), low, high (Student's
    95 % interval), exact, the first three relative to exact, and ``other``, relative to the other attention's flow.
    """
    tables = []
    for length in lengths:
        start = problem.balanced_init(alpha)
        rngs = [stream(seed, "sgd", length, k) for k in range(seeds)]
        run = train(problem, length, block_start(start), step_size=step_size, n_steps=n_steps, rngs=rngs, batch=batch)
        risks, _ = checkpoint_risks(problem, run)
        exact = {
            kind: gradient_flow(problem, kind, start, run.time[-1], length=length, times=run.time).risk
            for kind in run.attention
        }
        for k, (kind, other) in enumerate(zip(run.attention, run.attention[::-1], strict=True)):
            frame = over_seeds(risks[k], exact[kind])
            frame = frame.assign(length=f"L = {length}", attention=kind, time=run.time)
            tables.append(frame.assign(other=risks[k].mean(0) / exact[other]))
    return pd.concat(tables, ignore_index=True)


def parametrizations(
    problem: InContextRegression, length, alpha, step_size, n_steps, seeds: int, batch: int, seed: int
) -> pd.DataFrame:
    """Softmax SGD through full U, V and through Q, K, V, O, from the block.

    Each is held against the exact flow of its own parametrization (that of (U, V) is that of (A, b)). The gradients of
    full matrices have heavy tails, and need a tenth of a step that suits the block.

    Columns: start, time, measured, low, high, exact, relative ones, best (the risk of the best softmax head of the
    length), and ``linear``, the flow of linear attention from the same block.
    """
    block = problem.balanced_init(alpha)
    best = problem.risk_and_gradient("softmax", *best_softmax(problem, length), length)[0]
    tables = []
    for name, start in {"(U, V)": full_start(block), "(Q, K, V, O)": factored_start(block)}.items():
        rngs = [stream(seed, "parametrization", f"{name}, block", k) for k in range(seeds)]
        settings = {"step_size": step_size, "n_steps": n_steps, "rngs": rngs, "batch": batch}
        run = train(problem, length, start, attention=("softmax",), n_checkpoints=14, **settings)
        risks, _ = checkpoint_risks(problem, run, n_draws=2048, rng=stream(seed, "draws"))
        flow = {"length": length, "times": run.time, "factored": name.startswith("(Q")}
        exact = gradient_flow(problem, "softmax", block, run.time[-1], **flow).risk
        linear = gradient_flow(problem, "linear", block, run.time[-1], length=length, times=run.time).risk
        tables.append(over_seeds(risks[0], exact).assign(start=name, time=run.time, best=best, linear=linear))
    return pd.concat(tables, ignore_index=True)


def other_tokens(
    problem: InContextRegression, lengths, alpha, step_size, n_steps, seeds: int, batch: int, held_out: int, seed: int
) -> pd.DataFrame:
    """Softmax training with Gaussian, Rademacher and uniform x of the same covariance: risk on held-out prompts.

    Columns: tokens, length, L, time, measured (mean over seeds), low, high (Student's interval over the seeds).
    """
    d, tables = problem.dimension, []
    for name, measure in {"Gaussian": None, "Rademacher": Rademacher(d), "uniform": Uniform(d, np.sqrt(3.0))}.items():
        for length in lengths:
            rngs = [stream(seed, "tokens", name, length, k) for k in range(seeds)]
            settings = {"step_size": step_size, "n_steps": n_steps, "rngs": rngs, "batch": batch, "measure": measure}
            start = block_start(problem.balanced_init(alpha))
            run = train(problem, length, start, attention=("softmax",), n_checkpoints=8, **settings)
            risks, _ = held_out_risks(problem, run, held_out, stream(seed, "held out", name, length), measure)
            frame = over_seeds(risks[0], np.full(len(run.time), np.nan))
            tables.append(frame.assign(tokens=name, length=f"L = {length}", L=length, time=run.time))
    return pd.concat(tables, ignore_index=True)


def gain_from_length(table: pd.DataFrame, tokens: list[str]) -> tuple[list[float], list[float]]:
    """Risk at the longest prompt over that at the shortest, for some tokens: after training, and before."""
    trained, untrained = [], []
    for name in tokens:
        by_length = table[table["tokens"] == name].groupby("L")["measured"]
        trained.append(by_length.last().iloc[-1] / by_length.last().iloc[0])
        untrained.append(by_length.first().iloc[-1] / by_length.first().iloc[0])
    return trained, untrained


def over_seeds(risks: np.ndarray, exact: np.ndarray) -> pd.DataFrame:
    """Means over the seeds with Student's intervals, at each checkpoint, also relative to exact."""
    means = [Estimate.of_mean(column) if np.ptp(column) else Estimate.exact(column[0]) for column in risks.T]
    frame = pd.DataFrame(means, columns=["measured", "low", "high"]).assign(exact=exact)
    return frame.assign(**{f"{x} / exact": frame[x] / frame["exact"] for x in ("measured", "low", "high")})
