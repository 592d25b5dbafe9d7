r"""Softmax training from random starts, outside of the theorem's block: where it goes, and the other head it may find.

From random matrices Q, K, V, O training may also find a head that exchanges x and y: it scores the tokens by y and
reads out x. With e a unit eigenvector of Sigma, gamma its eigenvalue, and nu, xi two sizes,

    score_i = nu y_i (e . x_q),   prediction = xi e . sum_i p_i x_i  ->  nu xi gamma (e . w) (e . x_q)   as L grows:

one direction is learned, and half the task variance of all others is left. Its risk at a finite prompt length is that
of :func:`lib.regression.head_risk.head_risks`. (Found by notebook 03, which holds the runs against it.)
"""

import math

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar

from lib.experiments.stochastic_training import over_seeds
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Estimate
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.head_risk import checkpoint_risks, head_risks
from lib.regression.sgd import default_start, train
from lib.regression.task import InContextRegression

CHECKPOINTS = 14
DRAWS = 2048  # of task and query, for the risk of a trained head
SEARCH_DRAWS, FINAL_DRAWS = 4096, 2**16  # for the exchanged head, while it is looked for and at the end
NU = (0.01, 2.0)  # where its size is looked for
EARLY = 0.1  # fraction of the training at which a run has not yet arrived


def exchanged_risk(*, problem: InContextRegression, length: int, seed: int) -> float:
    """Risk of the best head that exchanges x and y along the largest eigenvalue of Sigma, to about 1 %.

    The risk is quadratic in xi; nu is found by a bounded search. For an infinite prompt it would be
    task_variance (tr Sigma - gamma) / 2.
    """
    direction = np.linalg.eigh(problem.covariance)[1][:, -1]

    def risk(log_nu: float, n_draws: int) -> float:
        U = np.vstack([np.zeros_like(problem.covariance), np.exp(log_nu) * direction])
        v = np.outer([0.0, 1.0, 2.0], np.append(direction, 0.0))
        rng = stream(seed, "exchanged")
        zero, one, two = head_risks(problem, "softmax", np.stack([U] * 3), v, length, n_draws, rng)[0]
        square = (two - 2 * one + zero) / 2
        return zero - (one - zero - square) ** 2 / (4 * square)

    bounds = math.log(NU[0]), math.log(NU[1])
    found = minimize_scalar(risk, bounds=bounds, args=(SEARCH_DRAWS,), method="bounded")
    return float(risk(found.x, FINAL_DRAWS))


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
    """Softmax SGD of Q, K, V, O from random starts, told apart by what the trained head reads out: mostly y, or x.

    Args:
        problem: the task.
        length: prompt length L, in tokens.
        step_size: flow time a step.
        n_steps: steps of each training.
        starts: how many, each trained once.
        batch: prompts a step and start.
        seed: root of the random draws.

    Returns:
        Columns reads ("y" or "x"), runs, head (a label), time, measured (mean risk over those runs), low, high
        (Student's 95 % interval, each by itself), exact (the best softmax risk of the length, or that of
        :func:`exchanged_risk`), the first three relative to it, and best, the best softmax risk.
        Two parts: "y", the runs that read out y over the best softmax head, control a tenth of the training; "x", the
        others over the best exchanged head, control over the best softmax head.
    """
    inits = [default_start(problem.dimension, stream(seed, "default", k)) for k in range(starts)]
    rngs = [stream(seed, "random start", k) for k in range(starts)]
    settings = {"step_size": step_size, "n_steps": n_steps, "rngs": rngs, "batch": batch, "n_checkpoints": CHECKPOINTS}
    run = train(problem, length, inits, attention=("softmax",), **settings)
    risks, _ = checkpoint_risks(problem, run, n_draws=DRAWS, rng=stream(seed, "draws"))
    readout = run.heads()[1][0, :, -1]
    reads_x = np.linalg.norm(readout[:, :-1], axis=1) > np.abs(readout[:, -1])
    best = problem.risk_and_gradient("softmax", *best_softmax(problem, length), length)[0]
    levels = {"y": best, "x": exchanged_risk(problem=problem, length=length, seed=seed)}
    tables = []
    for reads, chosen in (("y", ~reads_x), ("x", reads_x)):
        if chosen.any():
            frame = over_seeds(risks[0][chosen], np.full(len(run.time), levels[reads]), together=1)
            label = f"reads {reads}: {chosen.sum()} of {starts}"
            tables.append(frame.assign(reads=reads, runs=chosen.sum(), head=label, time=run.time, best=best))
    table = pd.concat(tables, ignore_index=True)
    reading_y, reading_x = (table[table["reads"] == reads] for reads in "yx")
    parts = {
        "y": Comparison(reading_y, _reached(reading_y), _reached(reading_y, fraction=EARLY)),
        "x": Comparison(reading_x, _reached(reading_x), _reached(reading_x, over="best")),
    }
    return Comparison(table, parts=parts)


def _reached(rows: pd.DataFrame, over: str = "exact", fraction: float = 1.0) -> Estimate:
    """Mean risk of some runs over a column, at a fraction of the training; unknown for fewer than two runs."""
    rows = rows[rows["time"] <= fraction * rows["time"].max()]
    if len(rows) == 0 or rows["runs"].iloc[0] < 2:
        return Estimate.unknown()
    last = rows.iloc[-1]
    return Estimate(*(float(last[x] / last[over]) for x in ("measured", "low", "high")))
