"""Softmax training from random starts, outside of the theorem's block: where it goes, and where it would end.

The trained heads are told apart by what they read out: mostly y, or x. The latter linger at a head that exchanges x and
y, which is a saddle, see :mod:`lib.experiments.training_stability.exchanged`. How far they come depends on the number
of steps; where they would end does not, and is found by descending the exact risk from each trained head.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.experiments.training_stability.exchanged import (
    Head,
    best_exchanged,
    descend,
    mixed_head,
    relative_risks,
)
from lib.notebook import figures
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import NORMAL, Intervals
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.head_risk import head_risks
from lib.regression.sgd import default_start, train
from lib.regression.task import InContextRegression

CHECKPOINTS = 24
DRAWS = 2**13  # of task and query, the same for all heads
LEVELS = {"exchanged": "best exchanged head", "mixed": "mixed head", "best": "best softmax head"}


def random_starts(
    *,
    problem: InContextRegression,
    length: int,
    step_size: float,
    n_steps: int,
    starts: int,
    batch: int,
    seed: int,
) -> Comparison:
    """Softmax SGD of Q, K, V, O from random starts, and the local minimum of the exact risk below each trained head.

    Args:
        problem: the task.
        length: prompt length L, in tokens.
        step_size: flow time a step.
        n_steps: steps of each training.
        starts: how many, each trained once.
        batch: prompts a step and start.
        seed: root of the random draws.

    Returns:
        Columns run, reads ("y" or "x"), time, risk; end, the risk of the minimum below the trained head; and, the same
        in every row, best, exchanged and mixed: the risks of the best softmax head, of the best exchanged head, and of
        the minimum below it. All are averages over the same draws.
        Two parts: "y", ends of the runs that read out y over the risk of the best softmax head, near miss that of the
        best with one token less, control that of the mixed head; "x", ends of the others
        over the risk of the mixed head, near miss that of the best exchanged head, control of the best softmax head.

    Cost: that of :func:`lib.regression.sgd.train`, and 1.5 s a start for its end.
    """
    inits = [default_start(problem.dimension, stream(seed, "default", k)) for k in range(starts)]
    rngs = [stream(seed, "random start", k) for k in range(starts)]
    settings = {"step_size": step_size, "n_steps": n_steps, "rngs": rngs, "batch": batch, "n_checkpoints": CHECKPOINTS}
    run = train(problem, length, inits, attention=("softmax",), **settings)
    U, v = (part[0] for part in run.heads())
    risks, _ = _risks(problem, U, v, length, seed)
    trained = [Head(*last) for last in zip(U[:, -1], v[:, -1], strict=True)]
    reads_x = np.array([np.linalg.norm(head.v[:-1]) > abs(head.v[-1]) for head in trained])
    ends = [descend(problem, head, length, seed + 1) for head in trained]
    best, exchanged = best_softmax(problem, length), best_exchanged(problem=problem, length=length, seed=seed)
    mixed = mixed_head(problem, exchanged, length, seed)
    known = {"best": Head.of_block(*best), "exchanged": exchanged.head, "mixed": mixed}
    levels = {name: float(_risks(problem, head.U, head.v, length, seed)[0]) for name, head in known.items()}
    end_risks, errors = _risks(problem, np.stack([x.U for x in ends]), np.stack([x.v for x in ends]), length, seed)
    columns = {"run": np.arange(starts), "reads": np.where(reads_x, "x", "y"), "end": end_risks}
    table = pd.DataFrame(columns).loc[np.repeat(np.arange(starts), len(run.time))]
    table = table.assign(time=np.tile(run.time, starts), risk=risks.ravel(), **levels).reset_index(drop=True)
    parts = {
        "y": _at_best(problem, length, levels["mixed"], end_risks[~reads_x], errors[~reads_x]),
        "x": _at_mixed(problem, length, [end for end, x in zip(ends, reads_x, strict=True) if x], known, seed),
    }
    return Comparison(table, parts=parts)


def figure(table: pd.DataFrame) -> plt.Figure:
    """Every run of :func:`random_starts`, colored by what it reads out, and the three levels."""
    drawn, (axis,) = figures.panels(1, height=4.2)
    colors = dict(zip(("y", "x"), figures.palette(2), strict=True))
    for (_, reads), rows in table[table["time"] > 0].groupby(["run", "reads"]):
        axis.plot(rows["time"], rows["risk"], color=colors[reads], lw=1.0, alpha=0.8)
    for reads, color in colors.items():
        runs = table[table["reads"] == reads]["run"].nunique()
        axis.plot([], [], color=color, label=f"reads out {reads}: {runs} runs")
    for (column, label), style in zip(LEVELS.items(), (":", "--", "-"), strict=True):
        axis.axhline(table[column].iloc[0], color=figures.BLACK, ls=style, lw=1.2, label=label)
    axis.set(xscale="log", yscale="log", xlabel="flow time = step size × steps", ylabel="excess risk")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figures.plain_ticks(axis, table["time"])
    return drawn


def _risks(problem, U, v, length, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return head_risks(problem, "softmax", U, v, length, DRAWS, stream(seed, "levels"))


def _at_best(problem, length, mixed: float, risks: np.ndarray, errors: np.ndarray) -> Comparison:
    """Risks of minima, with their standard errors, over that of the best softmax head; and over those of the wrong."""
    sides = {"measured": length, "near_miss": length - 1}
    exact = {x: problem.risk_and_gradient("softmax", *best_softmax(problem, L), L)[0] for x, L in sides.items()}
    ends = risks, risks - NORMAL * errors, risks + NORMAL * errors
    return Comparison(
        **{x: Intervals(*(end / risk for end in ends)) for x, risk in (exact | {"control": mixed}).items()}
    )


def _at_mixed(problem, length, ends: list[Head], known: dict[str, Head], seed: int) -> Comparison:
    """Risks of minima over that of the mixed head, the best exchanged one, and the best softmax head."""
    sides = {"measured": "mixed", "near_miss": "exchanged", "control": "best"}
    return Comparison(
        **{side: relative_risks(problem, ends, known[name], length, seed) for side, name in sides.items()}
    )
