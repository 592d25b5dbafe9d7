"""Stochastic softmax training through other parametrizations than (A, b), started in the block."""

import numpy as np
import pandas as pd

from lib.experiments.stochastic_training import FasterFlows, compared_speeds, flat_blocks, over_seeds, speeds
from lib.notebook.comparison import Comparison
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.head import BlockHead
from lib.regression.head_risk import checkpoint_risks
from lib.regression.sgd import factored_start, full_start, train
from lib.regression.task import InContextRegression

CHECKPOINTS = 14
DRAWS = 2048  # of task and query, for the risk of a head away from the block


def parametrizations(
    *,
    problem: InContextRegression,
    length: int,
    alpha: float,
    step_size: float,
    n_steps: int,
    seeds: int,
    batch: int,
    seed: int,
) -> Comparison:
    """Softmax SGD through full U, V and through Q, K, V, O, from the block, on the same prompts.

    Each is held against the exact flow of its own parametrization (that of (U, V) is that of (A, b)). The gradients of
    full matrices have heavy tails, and need a tenth of a step that suits the block. Their noise carries the heads out
    of the block, which costs risk and time, both in proportion to step size / batch: the mean risk lies above that of
    the flow, and its part inside of the block, risk of (A, b), hardly does.

    Args:
        problem: the task.
        length: prompt length L, in tokens.
        alpha: size of the balanced start.
        step_size: flow time a step.
        n_steps: steps of each training.
        seeds: independent trainings, at least 2 for intervals.
        batch: prompts a step and seed.
        seed: root of the random draws.

    Returns:
        Columns start ("(U, V)" or "(Q, K, V, O)"), time, measured (mean risk), low, high (Student's intervals, which
        hold in all rows at once with 95 % confidence), exact, and the first three relative to it; "in block", the mean
        risk of the block part of the heads; best, the risk of the best softmax head of the length.
        measured: the mean speed of each parametrization over its own exact flow, see
        :func:`lib.experiments.stochastic_training.speeds`. near miss: over the flow of the other parametrization.
        control: over its own flow of the loss without its half. One part, "speed": the table of the speeds.
    """
    block = problem.balanced_init(alpha)
    best = problem.risk_and_gradient("softmax", *best_softmax(problem, length), length)[0]
    starts = {"(U, V)": full_start(block), "(Q, K, V, O)": factored_start(block)}
    runs, flows = {}, {}
    for name, start in starts.items():
        rngs = [stream(seed, "parametrization", k) for k in range(seeds)]
        settings = {"step_size": step_size, "n_steps": n_steps, "rngs": rngs, "batch": batch}
        runs[name] = train(problem, length, start, attention=("softmax",), n_checkpoints=CHECKPOINTS, **settings)
        time = runs[name].time
        flows[name] = FasterFlows.of(problem, "softmax", block, length, time, factored="Q" in start)
    moving, tables, clocks = sum(len(run.time) - 1 for run in runs.values()), [], []
    for (name, run), other in zip(runs.items(), reversed(flows.values()), strict=True):
        risks, _ = checkpoint_risks(problem, run, n_draws=DRAWS, rng=stream(seed, "draws"))
        (inside,) = flat_blocks(run)
        columns = {"start": name, "time": run.time, "in block": _block_risks(problem, inside, length), "best": best}
        tables.append(over_seeds(risks[0], flows[name].risk, moving).assign(**columns))
        crossed = speeds(inside, other.heads, run.time)
        clocks.append(flows[name].clocks(inside).assign(other=crossed, start=name, seed=range(seeds)))
    speed = compared_speeds(pd.concat(clocks, ignore_index=True), "start", near="other")
    table = pd.concat(tables, ignore_index=True)
    return Comparison(table, speed.measured, speed.control, {"speed": speed}, speed.near_miss)


def _block_risks(problem: InContextRegression, heads: np.ndarray, length: int) -> np.ndarray:
    """Mean exact risk over the seeds of heads (A, b), flat, of shape (seeds, n, d^2 + 1): shape (n,)."""
    risks = [[problem.risk_and_gradient("softmax", *BlockHead.from_flat(x), length)[0] for x in run] for run in heads]
    return np.mean(risks, 0)
