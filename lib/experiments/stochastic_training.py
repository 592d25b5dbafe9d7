"""Stochastic training on raw prompts against exact flows: what notebooks 03 and 04 share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream
from lib.regression.flow import gradient_flow
from lib.regression.head_risk import checkpoint_risks
from lib.regression.sgd import Training, block_start, train
from lib.regression.task import InContextRegression

SLIGHTLY, TWICE = 1.05, 2.0  # how much faster: a step 5 % too large, and a loss without its half


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
        Two parts: "both", the same of softmax and linear attention together, and "speed", see :func:`speeds`: of each
        attention over its exact flow, the means over all seeds and lengths. Near miss: over a flow whose steps are 5 %
        too large. Control: over one of the loss without its half. Table: length, attention, seed, speed.

    Cost: n_steps * seeds * batch * L * (d + 1) random numbers a length, see :func:`lib.regression.sgd.train`.
    """
    runs, clocks = [], []
    for length in lengths:
        start = problem.balanced_init(alpha)
        rngs = [stream(seed, "sgd", length, k) for k in range(seeds)]
        run = train(problem, length, block_start(start), step_size=step_size, n_steps=n_steps, rngs=rngs, batch=batch)
        risks, _ = checkpoint_risks(problem, run)
        flows = {kind: FasterFlows.of(problem, kind, start, length, run.time) for kind in run.attention}
        for k, (kind, other) in enumerate(zip(run.attention, run.attention[::-1], strict=True)):
            columns = {"length": f"L = {length}", "attention": kind}
            relative_to = {"time": run.time, "other": risks[k].mean(0) / flows[other].risk}
            runs.append((risks[k], flows[kind].risk, columns | relative_to))
            clocks.append(flows[kind].clocks(flat_blocks(run)[k]).assign(seed=range(seeds), **columns))
    moving = sum(len(columns["time"]) - 1 for _, _, columns in runs)  # checkpoints after the start
    table = pd.concat([over_seeds(*run, moving).assign(**columns) for *run, columns in runs], ignore_index=True)
    softmax = table[table["attention"] == "softmax"]
    both = Comparison(table, relative(table), Intervals.exact(table["other"]))
    parts = {"both": both, "speed": compared_speeds(pd.concat(clocks, ignore_index=True), "attention")}
    return Comparison(table, relative(softmax), Intervals.exact(softmax["other"]), parts)


@dataclass(frozen=True)
class FasterFlows:
    """The exact flow at the checkpoints of a training, and what it would be if it were faster.

    Attributes:
        time: of the checkpoints, shape (n,). risk: exact, at them, shape (n,).
        heads: (A, b) flat at them, shape (n, d^2 + 1); slightly, twice: the same where time runs so much faster.
    """

    time: np.ndarray
    risk: np.ndarray
    heads: np.ndarray
    slightly: np.ndarray
    twice: np.ndarray

    @classmethod
    def of(cls, problem, attention, start, length: int, time: np.ndarray, factored: bool = False) -> "FasterFlows":
        """From one flow, see :func:`lib.regression.flow.gradient_flow`, that lasts twice as long as the training."""
        times = np.unique(np.concatenate([factor * time for factor in (1.0, SLIGHTLY, TWICE)]))
        flow = gradient_flow(problem, attention, start, times[-1], length=length, times=times, factored=factored)
        at = [np.searchsorted(times, factor * time) for factor in (1.0, SLIGHTLY, TWICE)]
        flat = np.concatenate([flow.A.reshape(len(times), -1), flow.b[:, None]], 1)
        return cls(time, flow.risk[at[0]], *(flat[k] for k in at))

    def clocks(self, runs: np.ndarray) -> pd.DataFrame:
        """Columns speed, slightly, twice: those of :func:`speeds` over the three flows; a row a seed."""
        exact = {"speed": self.heads, "slightly": self.slightly, "twice": self.twice}
        return pd.DataFrame({name: speeds(runs, heads, self.time) for name, heads in exact.items()})


def speeds(runs: np.ndarray, exact: np.ndarray, time: np.ndarray) -> np.ndarray:
    r"""How much faster runs move than an exact trajectory: c such that run(t) = exact(c t), to first order in c - 1.

        log c = sum_k <run(t_k) - exact(t_k), e_k> / sum_k |e_k|^2,        e_k = d exact / d log t at t_k,

    the least-squares fit along the trajectory. A run that is 10 % too fast shows it here as 10 %, where its risk would
    be off by a few percent only. Where c is far from 1 its value is not to be trusted, only that it is.

    Args:
        runs: parameters at the checkpoints, shape (seeds, n, k). exact: shape (n, k). time: from 0, shape (n,).

    Returns:
        Shape (seeds,).
    """
    along = np.gradient(exact[1:], np.log(time[1:]), axis=0)
    return np.exp(((runs[:, 1:] - exact[1:]) * along).sum((1, 2)) / (along**2).sum())


def flat_blocks(run: Training) -> np.ndarray:
    """The block part (A, b) of every head of a training, flat: shape (arms, seeds, checkpoints, d^2 + 1)."""
    U, v = run.heads()
    return np.concatenate([U[..., :-1, :].reshape(*v.shape[:-1], -1), v[..., -1:]], -1)


def compared_speeds(table: pd.DataFrame, by: str, near: str = "slightly", control: str = "twice") -> Comparison:
    """Mean speeds of each kind, to be judged together, from a table with a row an independent training.

    Args:
        table: columns speed, ``near`` and ``control``; ``by`` tells the kinds apart, as many rows of each.
        by, near, control: names of columns: what is judged apart, and what is measured in the near miss and control.
    """

    def means(column: str) -> Intervals:
        return Intervals.of_means(np.stack([rows[column] for _, rows in table.groupby(by, sort=False)], 1))

    return Comparison(table, means("speed"), means(control), near_miss=means(near))


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
