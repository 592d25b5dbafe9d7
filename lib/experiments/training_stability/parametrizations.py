"""Stochastic softmax training through other parametrizations than (A, b), started in the block."""

import pandas as pd

from lib.experiments.stochastic_training import over_seeds, relative
from lib.notebook.comparison import Comparison
from lib.prompts.estimate import Intervals
from lib.prompts.streams import stream
from lib.regression.best_heads import best_softmax
from lib.regression.flow import gradient_flow
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
    """Softmax SGD through full U, V and through Q, K, V, O, from the block.

    Each is held against the exact flow of its own parametrization (that of (U, V) is that of (A, b)). The gradients of
    full matrices have heavy tails, and need a tenth of a step that suits the block.

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
        Columns start ("(U, V)" or "(Q, K, V, O)"), time, measured (mean risk), low, high (Student's intervals,
        which hold in all rows at once with 95 % confidence), exact, and the first three relative to it; best, the risk
        of the best softmax head of the length; linear, that of the flow of linear attention from the same block.
        measured: over the exact risk, at every checkpoint. control: the worst over the flow of linear attention.
    """
    block = problem.balanced_init(alpha)
    best = problem.risk_and_gradient("softmax", *best_softmax(problem, length), length)[0]
    tables = []
    for name, start in {"(U, V)": full_start(block), "(Q, K, V, O)": factored_start(block)}.items():
        rngs = [stream(seed, "parametrization", f"{name}, block", k) for k in range(seeds)]
        settings = {"step_size": step_size, "n_steps": n_steps, "rngs": rngs, "batch": batch}
        run = train(problem, length, start, attention=("softmax",), n_checkpoints=CHECKPOINTS, **settings)
        risks, _ = checkpoint_risks(problem, run, n_draws=DRAWS, rng=stream(seed, "draws"))
        flow = {"length": length, "times": run.time}
        exact = gradient_flow(problem, "softmax", block, run.time[-1], factored="Q" in start, **flow).risk
        linear = gradient_flow(problem, "linear", block, run.time[-1], **flow).risk
        moving = 2 * (len(run.time) - 1)  # checkpoints after the start, of both parametrizations together
        tables.append(over_seeds(risks[0], exact, moving).assign(start=name, time=run.time, best=best, linear=linear))
    table = pd.concat(tables, ignore_index=True)
    return Comparison(table, relative(table), Intervals.exact(table["measured"] / table["linear"]))
