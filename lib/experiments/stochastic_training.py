"""Stochastic training on raw prompts against exact flows: what notebooks 03 and 04 share."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals
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
        Columns length, attention, time; measured (mean over the seeds of the risk), low, high (Student's intervals,
        which hold in all rows at once with 95 % confidence), exact, and the first three relative to it; other, the
        mean relative to the other attention's flow.
        measured: softmax, over its exact risk at every checkpoint. control: over the flow of the other attention.
        One part: "both", the same of softmax and linear attention together.

    Cost: n_steps * seeds * batch * L * (d + 1) random numbers a length, see :func:`lib.regression.sgd.train`.
    """
    runs = []
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
            columns = {"length": f"L = {length}", "attention": kind, "time": run.time}
            runs.append((risks[k], exact[kind], columns | {"other": risks[k].mean(0) / exact[other]}))
    moving = sum(len(columns["time"]) - 1 for _, _, columns in runs)  # checkpoints after the start
    table = pd.concat([over_seeds(*run, moving).assign(**columns) for *run, columns in runs], ignore_index=True)
    softmax = table[table["attention"] == "softmax"]
    both = Comparison(table, relative(table), Intervals.exact(table["other"]))
    return Comparison(table, relative(softmax), Intervals.exact(softmax["other"]), {"both": both})


def over_seeds(risks: np.ndarray, exact: np.ndarray, together: int | None = None) -> pd.DataFrame:
    """Means over the seeds with Student's intervals at each checkpoint, also relative to the exact risk.

    All intervals hold at once with 95 % confidence, see :meth:`lib.prompts.estimate.Intervals.of_means`.

    Args:
        risks: shape (seeds, checkpoints); of one seed there are no intervals.
        exact: shape (checkpoints,); NaN where there is none.
        together: how many intervals hold at once, where that is not those of these checkpoints: more where several
            tables are judged as one, 1 for intervals that hold one by one.

    Returns:
        Columns measured, low, high, exact; "measured / exact", "low / exact", "high / exact". Seeds that all agree, as
        before the first step, are exact, and are not counted.
    """
    means = Intervals.of_means(risks, together=together)
    frame = pd.DataFrame({"measured": means.values, "low": means.low, "high": means.high}).assign(exact=exact)
    return frame.assign(**{f"{x} / exact": frame[x] / frame["exact"] for x in ("measured", "low", "high")})


def relative(table: pd.DataFrame) -> Intervals:
    """The columns of :func:`over_seeds` relative to the exact risk, to be judged at every checkpoint."""
    return Intervals(*(table[f"{x} / exact"].to_numpy() for x in ("measured", "low", "high")))
