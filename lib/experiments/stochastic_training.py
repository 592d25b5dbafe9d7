"""Stochastic training on raw prompts against exact flows: what notebooks 03 and 04 share."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate, Intervals
from lib.prompts.streams import stream
from lib.regression.flow import gradient_flow
from lib.regression.head_risk import checkpoint_risks
from lib.regression.sgd import block_start, train
from lib.regression.task import InContextRegression


def sgd_checkpoints(
    *,
    problem: InContextRegression,
    lengths: Sequence[int],
    alpha: float,
    step_size: float,
    n_steps: int,
    seeds: int,
    batch: int,
    seed: int,
) -> Comparison:
    """SGD on (A, b) from raw prompts, softmax and linear on the same ones, against the exact flow of each.

    A trained head's population risk is exact, so that each seed gives one number a checkpoint, without test noise.

    Args:
        problem: the task.
        lengths: prompt lengths L, in tokens.
        alpha: size of the balanced start.
        step_size: flow time a step.
        n_steps: steps of each training.
        seeds: independent trainings, at least 2 for intervals.
        batch: prompts a step and seed.
        seed: root of the random draws.

    Returns:
        Columns length, attention, time; measured (mean over the seeds of the risk), low, high (Student's 95 %
        interval), exact, and the first three relative to it; other, the mean relative to the other attention's flow.
        measured: softmax, over its exact risk at every checkpoint. control: over the flow of the other attention.
        One part: "both", the same of softmax and linear attention together.

    Cost: n_steps * seeds * batch * L * (d + 1) random numbers a length, see :func:`lib.regression.sgd.train`.
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
    table = pd.concat(tables, ignore_index=True)
    softmax = table[table["attention"] == "softmax"]
    both = Comparison(table, relative(table), Intervals.exact(table["other"]))
    return Comparison(table, relative(softmax), Intervals.exact(softmax["other"]), {"both": both})


def over_seeds(risks: np.ndarray, exact: np.ndarray) -> pd.DataFrame:
    """Means over the seeds with Student's 95 % intervals, at each checkpoint, also relative to the exact risk.

    Args:
        risks: shape (seeds, checkpoints).
        exact: shape (checkpoints,); NaN where there is none.

    Returns:
        Columns measured, low, high, exact; "measured / exact", "low / exact", "high / exact". Seeds that all agree, as
        before the first step, are exact.
    """
    means = [Estimate.of_mean(column) if np.ptp(column) else Estimate.exact(column[0]) for column in risks.T]
    frame = pd.DataFrame([tuple(mean) for mean in means], columns=["measured", "low", "high"]).assign(exact=exact)
    return frame.assign(**{f"{x} / exact": frame[x] / frame["exact"] for x in ("measured", "low", "high")})


def relative(table: pd.DataFrame) -> Intervals:
    """The columns of :func:`over_seeds` relative to the exact risk, to be judged at every checkpoint."""
    return Intervals(*(table[f"{x} / exact"].to_numpy() for x in ("measured", "low", "high")))
